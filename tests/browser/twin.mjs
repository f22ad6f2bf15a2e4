// Runs the page's own attention, trace and numbers on what stands on standard input, and prints what they say.

import { build } from "../../web/node_modules/esbuild/lib/main.js";
import { readFileSync } from "node:fs";

const folder = new URL("../../web/src/", import.meta.url);
const stdin = {
  contents: `export * from "./attention.ts"; export * from "./trace.ts"; export * from "./numbers.ts";`,
  resolveDir: folder.pathname,
  loader: "ts",
};
const { outputFiles } = await build({ stdin, bundle: true, format: "esm", write: false });
const twin = await import(`data:text/javascript;base64,${Buffer.from(outputFiles[0].text).toString("base64")}`);

// JSON has no infinity: the tests write it as a word.
const revive = (_, value) => (value === "Infinity" ? Infinity : value === "-Infinity" ? -Infinity : value);
const replace = (_, value) =>
  typeof value !== "number" || Number.isFinite(value) ? value : Number.isNaN(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";

const { examples, sums, numbers, heads, lengths } = JSON.parse(readFileSync(0, "utf8"), revive);
const answer = {
  traces: examples.map((example) => twin.traceSteps(example)),
  sums: sums.map((list) => twin.exactSum(list)),
  written: numbers.map((x) => [twin.number(x), twin.given(x)]),
  heads: heads.map(({ scores, values, allowed }) => {
    const { weights } = twin.softmaxSteps(scores, allowed);
    const output = values[0].map((_, e) => twin.mixture(weights, values.map((value) => value[e])));
    return { weights, output, shares: twin.shares(weights, values, output), influences: twin.influences(scores, values, allowed) };
  }),
  masks: lengths.map(([n, before, after]) => ({ causal: twin.causal(n), window: twin.window(n, before, after) })),
  empty: twin.firstEmptyRow(twin.both(twin.causal(5), twin.padding(5, [false, false, false, true, true]))),
};
process.stdout.write(JSON.stringify(answer, replace));
