// The page of the lens as `qkv lens --serve` serves it: rows that are not in it are asked of the server, and of nobody else.
// Called with the page's address, the browser and the right rows as JSON by "layer.head.query"; one line of JSON per test.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "../../web/node_modules/playwright-core/index.mjs";

const [link, executablePath, numbers] = process.argv.slice(2);
const right = JSON.parse(readFileSync(numbers, "utf8"));
const axe = createRequire(import.meta.url).resolve("../../web/node_modules/axe-core/axe.min.js");
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"] });

function same(got, want) {
  const [a, b] = [JSON.stringify(got), JSON.stringify(want)];
  if (a !== b) throw new Error(`got ${a}, want ${b}`);
}
/** The row that is shown, once it is the one wanted: its facts, and every number of its first keys against the right ones. */
async function shows(page, layer, head, query) {
  await page.waitForFunction((start) => document.getElementById("row-facts").textContent.startsWith(start), `Layer ${layer}, head ${head}, query ${query} `);
  await page.selectOption("#sort", "key");
  const row = right[`${layer}.${head}.${query}`];
  const lines = await page.$$eval("#keys tr", (all) => all.map((line) => [...line.children].map((cell) => cell.textContent)));
  const columns = ["weight", "norm_share", "share", "influence"];
  const heads = await page.$$eval("thead th", (all) => all.map((cell) => cell.textContent));
  const places = ["weight", "contribution", "share of output", "influence"].map((name) => heads.indexOf(name));
  same(lines.length, row.allowed.filter(Boolean).length);
  for (const cells of lines) {
    columns.forEach((name, at) => {
      const [got, want] = [Number(cells[places[at]]), row[name][Number(cells[0])]];
      if (!(Math.abs(got - want) <= 0.005 * Math.abs(want) + 1e-9)) throw new Error(`${name} of key ${cells[0]}: got ${got}, want ${want}`);
    });
  }
}
const asked = [];

const tests = {
  "fetches the row of a head that the page left out, by the keyboard alone": async (page) => {
    await shows(page, 1, 2, 20);
    same(asked.length, 0);
    await page.focus("#grid");
    await page.keyboard.press("ArrowLeft");
    await shows(page, 1, 1, 20);
    await page.focus("#grid");
    await page.keyboard.press("ArrowUp");
    await shows(page, 0, 1, 20);
    same(asked.length, 2);
    await page.focus("#grid");
    await page.keyboard.press("ArrowDown");
    await shows(page, 1, 1, 20);
    same(asked.length, 2);
  },
  "fetches the query that is typed, and that of a cell of the map": async (page) => {
    await page.fill("#query", "5");
    await page.press("#query", "Enter");
    await shows(page, 1, 2, 5);
    await page.focus("#map");
    for (const key of ["ArrowDown", "ArrowDown", "ArrowDown", "Enter"]) await page.keyboard.press(key);
    await shows(page, 1, 2, 3);
  },
  "opens again at a row that is not in it": async (page) => {
    await page.goto("about:blank"); // another document, not the same one at another place
    await page.goto(`${link}#row=0.3.7&layer=0&head=3&quantity=influence`);
    await shows(page, 0, 3, 7);
    same(new URLSearchParams((await page.evaluate(() => location.hash)).slice(1)).get("row"), "0.3.7");
    same(await page.inputValue("#quantity"), "influence");
  },
  "says what cannot be had, and goes on": async (page) => {
    await page.fill("#query", "99");
    await page.press("#query", "Enter");
    await page.waitForFunction(() => document.getElementById("status").textContent.startsWith("That row cannot be had: query must be one of the rows kept"));
    await page.fill("#query", "4");
    await page.press("#query", "Enter");
    await shows(page, 1, 2, 4);
  },
  "shows the last of several that were asked for": async (page) => {
    await page.route(/query=6$/, async (route) => {
      await new Promise((done) => setTimeout(done, 300));
      await route.continue();
    });
    for (const query of ["6", "8"]) {
      await page.fill("#query", query);
      await page.press("#query", "Enter");
    }
    await page.waitForResponse(/query=6$/);
    await shows(page, 1, 2, 8);
  },
  "has no trouble that axe knows": async (page) => {
    const found = await page.evaluate(() => axe.run());
    same(found.violations.map((v) => [v.id, v.nodes.map((n) => n.html)]), []);
  },
};

try {
  for (const [name, body] of Object.entries(tests)) {
    const page = await browser.newPage({ bypassCSP: name.includes("axe") });
    const troubles = [];
    asked.length = 0;
    page.on("request", (request) => {
      const address = request.url();
      if (address.startsWith(`${link}row?`)) asked.push(address);
      else if (!address.startsWith(link) && !/^(data|about):/.test(address)) troubles.push(`asked ${address}`);
    });
    page.on("pageerror", (error) => troubles.push(error.message));
    page.on("console", (message) => message.type() === "error" && !/status of 400/.test(message.text()) && troubles.push(message.text()));
    let error = null;
    try {
      await page.goto(link);
      if (name.includes("axe")) await page.addScriptTag({ path: axe });
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
