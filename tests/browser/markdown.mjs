// Writes the notebooks on standard input as the page of a static site does, and prints them.

import { build } from "../../web/node_modules/esbuild/lib/main.js";
import { readFileSync } from "node:fs";

const { pathname } = new URL("../../web/src/notebook-markdown.ts", import.meta.url);
const { outputFiles } = await build({ entryPoints: [pathname], bundle: true, format: "esm", write: false });
const { markdown } = await import(`data:text/javascript;base64,${Buffer.from(outputFiles[0].text).toString("base64")}`);
const { documents, lessons } = JSON.parse(readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(documents.map((document) => markdown(document, lessons))));
