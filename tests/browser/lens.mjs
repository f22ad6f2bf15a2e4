// The lens' HTML page in a browser that can reach nothing: maps, rows, text and table, by the mouse and by the keyboard alone.
// Called with the page's file, the browser and the right numbers as JSON; one line of JSON per test.

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { close, run, same } from "./alone.mjs";

const [file, executablePath, numbers] = process.argv.slice(2);
const right = JSON.parse(readFileSync(numbers, "utf8"));

const status = (page) => page.textContent("#status");
const press = async (page, keys) => {
  for (const key of keys) await page.keyboard.press(key);
};

/** Another document, not the same one at another place. */
const afresh = async (page, address) => {
  await page.goto("about:blank");
  await page.goto(address);
};

const tests = {
  "holds few nodes and says where it starts": async (page) => {
    const nodes = await page.evaluate(() => document.querySelectorAll("*").length);
    if (nodes > 5000) throw new Error(`${nodes} nodes`);
    const facts = await page.textContent("#row-facts");
    if (!facts.startsWith(`Layer ${right.layer}, head ${right.head}, query ${right.query}`)) throw new Error(facts);
  },
  "reaches every number of the row by the keyboard alone": async (page) => {
    await page.focus("#text");
    await page.keyboard.press("Home");
    for (let j = 0; j < right.tokens; j++) {
      const said = await status(page);
      if (!said.startsWith(`Key ${j} `)) throw new Error(said);
      if (right.weight[j] === null || j > right.query) {
        if (!said.includes("the mask forbids it")) throw new Error(said);
      } else {
        const [, weight, recency, contribution, share, influence] = said.match(/weight (\S+) \(by distance alone (\S+)\), contribution (\S+), share of output (\S+), influence (\S+)\.$/);
        close(weight, right.weight[j], `weight ${j}`);
        close(recency, right.recency[j], `by distance ${j}`);
        close(contribution, right.norm_share[j], `contribution ${j}`);
        close(share, right.share[j], `share ${j}`);
        close(influence, right.influence[j], `influence ${j}`);
      }
      await page.keyboard.press("ArrowRight");
    }
  },
  "reaches every cell of a map by the keyboard alone": async (page) => {
    await page.focus("#map");
    const [rows, cols] = [right.map.length, right.map[0].length];
    for (let r = 0; r < rows; r++) {
      for (let c = 0; c < cols; c++) {
        if (r || c) {
          const said = await status(page);
          close(said.match(/largest weight ([\d.e+-]+)/)[1], right.map[r][c], `cell ${r}, ${c}`);
        }
        if (c < cols - 1) await page.keyboard.press("ArrowRight");
      }
      await press(page, Array(cols - 1).fill("ArrowLeft"));
      await page.keyboard.press("ArrowDown");
    }
  },
  "moves from head to head, and the address says where": async (page) => {
    await page.focus("#grid");
    await press(page, ["ArrowUp", "ArrowUp", "ArrowUp", "ArrowLeft", "ArrowLeft", "ArrowLeft", "ArrowLeft"]);
    same(await page.textContent("#map-title"), "Layer 0, head 0");
    await press(page, ["ArrowRight", "ArrowDown"]);
    same(await page.textContent("#map-title"), "Layer 1, head 1");
    same(new URLSearchParams((await page.evaluate(() => location.hash)).slice(1)).get("head"), "1");
  },
  "opens again where its address says": async (page) => {
    await afresh(page, `${pathToFileURL(file).href}#layer=1&head=3&quantity=influence&scale=log&key=4`);
    same(await page.textContent("#map-title"), "Layer 1, head 3");
    same(await page.inputValue("#quantity"), "influence");
    same(await page.inputValue("#scale"), "log");
    await afresh(page, `${pathToFileURL(file).href}#layer=99&head=x&quantity=none&key=-3`);
    same(await page.inputValue("#quantity"), "weight");
  },
  "sorts its table, and the table is beside": async (page) => {
    await page.selectOption("#sort", "influence");
    const order = await page.$$eval("#keys tr td:first-child", (cells) => cells.map((cell) => Number(cell.textContent)));
    const want = [...Array(right.query + 1).keys()].sort((a, b) => right.influence[b] - right.influence[a] || a - b);
    same(order.slice(0, 20), want.slice(0, 20));
    await page.selectOption("#sort", "key");
    same(await page.textContent("#keys tr td:first-child"), "0");
  },
  "draws each kind of colours": async (page) => {
    const drawn = new Set();
    for (const scale of ["row", "all", "log", "rank"]) {
      await page.selectOption("#scale", scale);
      drawn.add(await page.evaluate(() => document.getElementById("map").toDataURL()));
    }
    same(drawn.size, 4);
  },
  "fits a phone without moving sideways": async (page) => {
    await page.setViewportSize({ width: 390, height: 800 });
    same(await page.evaluate(() => document.documentElement.scrollWidth), 390);
  },
  "has no trouble that axe knows, light and dark": async (page) => {
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      const found = await page.evaluate(() => axe.run());
      same(found.violations.map((v) => [v.id, v.nodes.map((n) => n.html)]), []);
    }
  },
};

await run(tests, { address: pathToFileURL(file).href, executablePath });
