// What the tests of single modules of the page stand on: they run in Node, on the page's own sources. A file of tests is
// called `*.unit.mjs` and is run by test_units.py, which gets one line of JSON for each test.

import { build } from "../../web/node_modules/esbuild/lib/main.js";

const folder = new URL("../../web/src/", import.meta.url).pathname;
const tests = [];

/** The modules that some text exports, as the page has them. */
export async function bundle(contents) {
  globalThis.location ??= { pathname: "/" };
  const stdin = { contents, resolveDir: folder, loader: "ts" };
  const { outputFiles } = await build({ stdin, bundle: true, format: "esm", write: false, target: "es2022" });
  return import(`data:text/javascript;base64,${Buffer.from(outputFiles[0].text).toString("base64")}`);
}

export function test(name, body) {
  tests.push({ name, body });
}

export async function main() {
  for (const { name, body } of tests) {
    const error = await Promise.resolve().then(body).then(() => null, (caught) => String(caught?.stack ?? caught));
    console.log(JSON.stringify({ name, error }));
  }
  // What a crashed page had planned.
  process.exit(0);
}
