// Tests of one page in a browser that can reach nothing but that page. One line of JSON per test.

import { createRequire } from "node:module";
import { chromium } from "../../web/node_modules/playwright-core/index.mjs";

const AXE = createRequire(import.meta.url).resolve("../../web/node_modules/axe-core/axe.min.js");
const QUIET = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"];

export function same(got, want) {
  const [a, b] = [JSON.stringify(got), JSON.stringify(want)];
  if (a !== b) throw new Error(`got ${a}, want ${b}`);
}

/** A number as the page writes it, to three digits, against the right one. */
export function close(got, want, what) {
  const x = got === "none" ? NaN : Number(got);
  if (!(Math.abs(x - want) <= 0.005 * Math.abs(want) + 1e-9)) throw new Error(`${what}: got ${got}, want ${want}`);
}

/**
 * Each test on a page of its own, opened at `address`; axe is there where a test's name says so. What the page asks for is
 * trouble, and so is every error, unless `asks(address)` or `says(text)` expects it. `begins` is called before each.
 */
export async function run(tests, { address, executablePath, asks = (url) => /^(file|data|about):/.test(url), says = () => false, begins = () => {} }) {
  const offline = address.startsWith("file:") ? ["--host-resolver-rules=MAP * ~NOTFOUND"] : [];
  const browser = await chromium.launch({ executablePath, args: [...QUIET, ...offline] });
  try {
    for (const [name, body] of Object.entries(tests)) {
      const axe = name.includes("axe"), page = await browser.newPage({ bypassCSP: axe });
      const troubles = [];
      begins();
      page.on("request", (request) => asks(request.url()) || troubles.push(`asked ${request.url()}`));
      page.on("pageerror", (error) => troubles.push(error.message));
      page.on("console", (message) => message.type() === "error" && !says(message.text()) && troubles.push(message.text()));
      let error = null;
      try {
        await page.goto(address);
        if (axe) await page.addScriptTag({ path: AXE });
        await body(page);
        same(troubles, []);
      } catch (problem) {
        error = problem.message;
      }
      await page.close();
      console.log(JSON.stringify({ name, error }));
    }
  } finally {
    await browser.close();
  }
}
