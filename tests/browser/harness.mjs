// What every test of the page stands on: a server of its own, a browser that can reach nothing else, and a keyboard.
//
// A file of tests calls `test` for each, and is run by test_page.py, which gives one result line per test.

import { chromium } from "../../web/node_modules/playwright-core/index.mjs";
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";

const settings = JSON.parse(process.env.QKV_BROWSER_TEST);
const tests = [];
export const AXE = createRequire(import.meta.url).resolve("../../web/node_modules/axe-core/axe.min.js");
export const solution = readFileSync(join(settings.content, "attention.solution.py"), "utf8");
export const settingsOf = settings;

export function test(name, body) {
  tests.push({ name, body });
}

/** A server on an empty notebook that is started while nobody waits for it: the next test's. */
let spare;

/** `qkv learn` on a notebook, an empty one if none is named; `link` opens it. */
export async function serve(notebook) {
  if (notebook) return start(notebook);
  const empty = () => start(join(mkdtempSync(join(tmpdir(), "qkv-page-")), "notebook.db"));
  const ready = spare ?? empty();
  spare = empty();
  spare.catch(() => undefined);
  return ready;
}

async function start(notebook) {
  const child = spawn(settings.python, ["-m", "qkv", "learn", "--no-browser", "--port", "0", "--data", notebook, "--json"], {
    env: { ...process.env, QKV_LEARN_ASSETS: settings.page, PYTHONPATH: settings.home },
    stdio: ["ignore", "pipe", "pipe"],
  });
  let said = "";
  const link = await new Promise((resolve, reject) => {
    child.stdout.on("data", (chunk) => {
      said += chunk;
      const found = said.match(/http:\/\/127\.0\.0\.1:\d+\/\?token=[\w-]+/);
      if (found) resolve(found[0]);
    });
    child.stderr.on("data", (chunk) => (said += chunk));
    child.on("exit", () => reject(new Error(`the server ended: ${said}`)));
  });
  return {
    link,
    notebook,
    stop: () =>
      new Promise((resolve) => {
        if (child.exitCode !== null || child.signalCode !== null) return resolve();
        child.on("exit", resolve);
        child.kill("SIGINT");
      }),
  };
}

/** A page in a browser profile of its own. Whatever it asks of another host than this one fails the test. */
export async function open(browser, options = {}) {
  const context = await browser.newContext({
    viewport: { width: 1280, height: 900 },
    reducedMotion: "reduce",
    acceptDownloads: true,
    ...options,
  });
  const page = await context.newPage();
  const troubles = [];
  context.on("request", (request) => {
    const { protocol, hostname } = new URL(request.url());
    if (protocol !== "blob:" && protocol !== "data:" && hostname !== "127.0.0.1") troubles.push(`asked ${request.url()}`);
  });
  page.on("pageerror", (error) => troubles.push(`error in the page: ${error.message}`));
  page.on("console", (message) => {
    // Chromium's own editing command puts a style on what replaces a selection, and the policy refuses it; and it logs
    // the answer that another tab was quicker.
    const known = /409 \(Conflict\)|Applying inline style|Pyodide has suffered|The cause of the fatal error|RuntimeError|wasm:/;
    if (message.type() === "error" && !known.test(message.text())) troubles.push(`console: ${message.text()}`);
  });
  page.troubles = troubles;
  // Long enough for a machine on which twenty others compute; nothing waits for it that does not fail.
  page.setDefaultTimeout(120_000);
  return page;
}

export async function enter(page, link, hash = "") {
  await page.goto(link);
  await ready(page);
  if (hash) await to(page, hash);
}

export async function ready(page) {
  await page.waitForSelector("main[aria-busy=false]");
}

export async function to(page, hash) {
  await page.evaluate((at) => (location.hash = at), hash);
  const heading = { lab: "Lab: write attend", notebook: "My notebook" }[hash.split("/")[1]];
  if (heading) await page.locator("h1", { hasText: heading }).waitFor();
}

/** Replaces what the lab's editor holds, as a person would. */
export async function type(page, code) {
  await page.locator(".cm-content").focus();
  await page.keyboard.press("Control+a");
  await page.keyboard.insertText(code);
}

export async function grade(page) {
  await page.getByRole("button", { name: "Grade", exact: true }).click();
  return settled(page);
}

/** Waits until nothing is running, and gives the lab's sentence. */
export async function settled(page) {
  await page.waitForFunction(() => {
    const buttons = [...document.querySelectorAll(".lab-buttons button")];
    return !buttons.find((button) => button.textContent === "Grade").disabled;
  });
  return page.locator(".work-state").textContent();
}

/** Presses Tab (or Shift+Tab) until what has the focus is called so. */
export async function tabTo(page, name, { back = false, limit = 400 } = {}) {
  for (let i = 0; i < limit; i++) {
    await page.keyboard.press(back ? "Shift+Tab" : "Tab");
    const here = await page.evaluate(() => {
      let element = document.activeElement;
      while (element?.shadowRoot?.activeElement) element = element.shadowRoot.activeElement;
      if (!element) return "";
      const label = element.labels?.[0]?.textContent;
      return (element.getAttribute("aria-label") ?? label ?? element.textContent ?? "").trim();
    });
    if (typeof name === "string" ? here === name : name.test(here)) return here;
  }
  throw new Error(`Tab never reached ${name}`);
}

/** Every violation that axe-core finds, in a few words. */
export async function violations(page) {
  if (!(await page.evaluate(() => "axe" in window))) await page.evaluate(readFileSync(AXE, "utf8"));
  return page.evaluate(async () => {
    const { violations } = await window.axe.run(document, { resultTypes: ["violations"] });
    return violations.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map((node) => `${node.target.join(" ")} ${node.any.concat(node.all, node.none)[0]?.message ?? ""}`).join(" | ")}`);
  });
}

export async function main() {
  const browser = await chromium.launch({
    executablePath: settings.chromium,
    args: [
      "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
      "--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    ],
  });
  for (const { name, body } of tests) {
    if (settings.only && !settings.only.includes(name)) continue;
    const began = Date.now();
    let error = null;
    const pages = [];
    const servers = [];
    const tools = {
      browser,
      open: async (options) => {
        const page = await open(browser, options);
        pages.push(page);
        return page;
      },
      serve: async (notebook) => {
        const server = await serve(notebook);
        servers.push(server);
        return server;
      },
    };
    try {
      await body(tools);
      const troubles = pages.flatMap((page) => page.troubles);
      if (troubles.length) throw new Error(troubles.join("\n"));
    } catch (caught) {
      error = String(caught?.stack ?? caught);
      if (settings.shots) for (const [i, page] of pages.entries()) await page.screenshot({ path: join(settings.shots, `${name.replace(/\W+/g, "-")}-${i}.png`) }).catch(() => undefined);
    }
    for (const page of pages) await page.context().close().catch(() => undefined);
    for (const server of servers) await server.stop().catch(() => undefined);
    console.log(JSON.stringify({ name, error, seconds: (Date.now() - began) / 1000 }));
  }
  await browser.close();
  await (await spare)?.stop();
}
