// The page of the lens as `qkv lens --serve` serves it: rows that are not in it are asked of the server, and of nobody else.
// Called with the page's address, the browser and the right rows as JSON by "layer.head.query"; one line of JSON per test.

import { readFileSync } from "node:fs";
import { close, run, same } from "./alone.mjs";

const [link, executablePath, numbers] = process.argv.slice(2);
const right = JSON.parse(readFileSync(numbers, "utf8"));

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
      close(cells[places[at]], row[name][Number(cells[0])], `${name} of key ${cells[0]}`);
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

await run(tests, {
  address: link,
  executablePath,
  begins: () => (asked.length = 0),
  asks: (address) => {
    if (address.startsWith(`${link}row?`)) asked.push(address);
    return address.startsWith(link) || /^(data|about):/.test(address);
  },
  says: (text) => /status of 400/.test(text),
});
