// Checks the documents on standard input as the page of a static site does, and prints what it says of each.

import { readFileSync } from "node:fs";
import { bundle } from "./unit.mjs";

const { checkedDocument } = await bundle(`export { checkedDocument } from "./notebook-document.ts";`);
const said = JSON.parse(readFileSync(0, "utf8")).map((document) => {
  try {
    return { document: checkedDocument(document) };
  } catch (error) {
    return { error: error.message };
  }
});
process.stdout.write(JSON.stringify(said));
