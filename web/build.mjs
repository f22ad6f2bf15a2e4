// Builds the page into the package qkv_learn_assets. `--watch` rebuilds; nothing else is needed to develop.

import { context } from "esbuild";
import { cp, mkdir, rm, readFile, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { join } from "node:path";

const here = fileURLToPath(new URL(".", import.meta.url));
const out = process.env.QKV_PAGE_OUT ?? join(here, "../learn/src/qkv_learn_assets/page");
const modules = join(here, "node_modules");

await rm(out, { recursive: true, force: true });
await mkdir(join(out, "assets"), { recursive: true });
await mkdir(join(out, "pyodide"), { recursive: true });

const builder = await context({
  entryPoints: [join(here, "src/main.ts"), join(here, "src/lab/worker.ts"), { in: join(here, "src/styles/page.css"), out: "page" }]
    .map((entry) => (typeof entry === "string" ? { in: entry, out: entry.match(/(\w+)\.ts$/)[1] } : entry)),
  outdir: join(out, "assets"),
  bundle: true,
  splitting: true,
  format: "esm",
  target: ["es2022"],
  minify: true,
  charset: "utf8",
  legalComments: "none",
  loader: { ".py": "text" },
  external: ["*.woff2"],
  metafile: true,
  logLevel: "warning",
});

await cp(join(here, "src/index.html"), join(out, "index.html"));
await cp(join(here, "src/icon.svg"), join(out, "assets/icon.svg"));
for (const face of ["400-normal", "400-italic", "600-normal"]) {
  const name = `source-serif-${face.replace("-normal", "").replace("-italic", "i")}.woff2`;
  await cp(join(modules, `@fontsource/source-serif-4/files/source-serif-4-latin-${face}.woff2`), join(out, "assets", name));
}
for (const name of ["pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json"]) {
  await cp(join(modules, "pyodide", name), join(out, "pyodide", name));
}
// Only what is not loaded by itself: no package can be installed in the lab, so the list of packages is empty.
const lock = JSON.parse(await readFile(join(out, "pyodide/pyodide-lock.json"), "utf8"));
await writeFile(join(out, "pyodide/pyodide-lock.json"), JSON.stringify({ ...lock, packages: {} }));

if (process.argv.includes("--watch")) await builder.watch();
else {
  const { metafile } = await builder.rebuild();
  await builder.dispose();
  await writeFile(join(out, "licenses.txt"), await licenses(Object.keys(metafile.inputs)));
}

/** The licence of every package that went into the page, as its authors wrote it. */
async function licenses(inputs) {
  const bundled = inputs.map((path) => path.match(/node_modules\/((?:@[^/]+\/)?[^/]+)\//)?.[1]).filter(Boolean);
  const texts = [];
  for (const name of [...new Set(bundled), "@fontsource/source-serif-4"].sort()) {
    const { version, license } = JSON.parse(await readFile(join(modules, name, "package.json"), "utf8"));
    const text = await readFile(join(modules, name, "LICENSE"), "utf8");
    texts.push(`${name} ${version} (${license})\n\n${text.trim()}\n`);
  }
  const { version } = JSON.parse(await readFile(join(modules, "pyodide/package.json"), "utf8"));
  texts.push(
    `Pyodide ${version} (Mozilla Public License 2.0, https://www.mozilla.org/MPL/2.0/), unchanged, in pyodide/. Source: ` +
      "https://github.com/pyodide/pyodide. It holds CPython and its standard library (Python Software Foundation License, " +
      "https://docs.python.org/3/license.html). pyodide-lock.json was emptied of packages.\n",
  );
  return texts.join(`\n${"-".repeat(78)}\n\n`);
}
