// The audit's HTML page in a browser that can reach nothing: sorted, filtered, opened, all of it by the keyboard as well.
// Called with the page's file and the browser; one line of JSON per test.

import { pathToFileURL } from "node:url";
import { run, same } from "./alone.mjs";

const [file, executablePath] = process.argv.slice(2);

const shown = (page) => page.$$eval("tbody tr:not([hidden]) th code", (all) => all.map((code) => code.textContent));

const tests = {
  "sorts by a column, there and back": async (page) => {
    same(await shown(page), ["A1-values", "C2-mask", "D1-leak"]);
    await page.click('button[data-column="2"]');
    same(await shown(page), ["C2-mask", "A1-values", "D1-leak"]);
    same(await page.getAttribute('th:has(button[data-column="2"])', "aria-sort"), "ascending");
    await page.click('button[data-column="2"]');
    same(await shown(page), ["D1-leak", "A1-values", "C2-mask"]);
    await page.click('button[data-column="0"]');
    same(await shown(page), ["A1-values", "C2-mask", "D1-leak"]);
  },
  "filters by words, clause, profile and verdict": async (page) => {
    await page.fill("#search", "a row | is nan");
    same(await shown(page), ["C2-mask"]);
    same(await page.textContent("#count"), "1 of 3 cases");
    await page.click("#clear");
    same((await shown(page)).length, 3);
    await page.selectOption("#clause", "B1");
    same(await shown(page), ["A1-values"]);
    await page.selectOption("#profile", "edges");
    same(await shown(page), []);
    await page.click("#clear");
    await page.selectOption("#verdict", "wrong");
    same(await shown(page), ["C2-mask"]);
  },
  "opens a case with input, both answers, and the line that shows it again": async (page) => {
    await page.click('td[data-verdict="wrong"] button');
    same(await page.$$eval("dialog[open] h3", (all) => all.map((head) => head.textContent)), [
      "What was seen", "Input", "Expected", "Actual", "Again",
    ]);
    same(await page.$$eval("dialog[open] pre", (all) => all.slice(2).map((text) => text.textContent)), [
      "output[0, 0, 0] = [0]", "output[0, 0, 0] = [1]", "qkv audit one --case C2-mask --seed 3",
    ]);
  },
  "needs no mouse": async (page) => {
    const name = () => page.evaluate(() => document.activeElement.getAttribute("aria-label"));
    await page.focus('td button[aria-label="one, A1-values: keeps"]');
    await page.keyboard.press("ArrowRight");
    same(await name(), "two, A1-values: keeps");
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("ArrowLeft");
    same(await name(), "one, C2-mask: wrong: the name | of it");
    await page.keyboard.press("Enter");
    same(await page.textContent("#case-title"), "one 1.0, C2-mask");
    await page.keyboard.press("Escape");
    same(await page.$$eval("dialog[open]", (all) => all.length), 0);
    same(await name(), "one, C2-mask: wrong: the name | of it");
  },
  "has no trouble that axe knows, light and dark": async (page) => {
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      for (const opened of [false, true]) {
        if (opened) await page.click('td[data-verdict="wrong"] button');
        const found = await page.evaluate(() => axe.run());
        same(found.violations.map((v) => [v.id, v.nodes.map((n) => n.html)]), []);
        if (opened) await page.keyboard.press("Escape");
      }
    }
    const papers = [];
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      papers.push(await page.evaluate(() => getComputedStyle(document.body).backgroundColor));
    }
    same(papers, ["rgb(255, 255, 255)", "rgb(16, 21, 30)"]);
  },
};

await run(tests, { address: pathToFileURL(file).href, executablePath });
