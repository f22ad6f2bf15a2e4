// The lesson as something to read: accessible, small, offline, in two tabs, and saying what its pictures mean.

import assert from "node:assert/strict";
import { enter, grade, ready, tabTo, test, to, type, violations } from "./harness.mjs";

test("axe-core finds nothing, light", (tools) => axe(tools, "light", 1280));
test("axe-core finds nothing, dark", (tools) => axe(tools, "dark", 1280));
test("axe-core finds nothing, light, 390 px", (tools) => axe(tools, "light", 390));
test("axe-core finds nothing, dark, 390 px", (tools) => axe(tools, "dark", 390));

async function axe({ serve, open }, scheme, width) {
  const server = await serve();
  const page = await open({ colorScheme: scheme, viewport: { width, height: 900 } });
  await enter(page, server.link);
  await page.getByRole("button", { name: "Open it step by step" }).first().click();
  await page.getByRole("button", { name: "Write down a failure to test" }).click();
  await page.locator(".failure-form").waitFor();
  await page.locator(".margin textarea").first().fill("a note");
  await page.getByRole("button", { name: /^Bookmark/ }).first().click();
  assert.deepEqual(await violations(page), [], "the lesson");
  await page.getByRole("button", { name: "Trace these numbers" }).click();
  assert.deepEqual(await violations(page), [], "a trace");
  await page.keyboard.press("Escape");
  await to(page, "#/lab/attention");
  await type(page, "def attend(query, keys, values, allowed):\n    return [1 / len(keys)] * len(keys), values[0]\n");
  await grade(page);
  await page.getByRole("button", { name: "Show a hint" }).click();
  await page.locator(".case-list summary").click();
  assert.deepEqual(await violations(page), [], "the lab with a failure");
  await to(page, "#/notebook");
  await page.locator(".attempt summary").first().click();
  assert.deepEqual(await violations(page), [], "the notebook");
}

test("the first page is small and asks for no Python", async ({ serve, open }) => {
  const server = await serve();
  const page = await open();
  let bytes = 0;
  const asked = [];
  const bodies = [];
  page.on("response", (response) => {
    asked.push(new URL(response.url()).pathname);
    bodies.push(response.body().then((body) => (bytes += body.length)).catch(() => undefined));
  });
  await enter(page, server.link);
  await page.waitForLoadState("networkidle");
  await Promise.all(bodies);
  console.error(`first page: ${bytes} bytes in ${asked.length} answers`);
  assert.ok(bytes <= 200_000, `${bytes} bytes`);
  assert.ok(!asked.some((path) => /pyodide|\/py\/|lab-|worker/.test(path)), asked.join(" "));
  assert.ok(asked.includes("/assets/main.js"));
});

test("with the network cut nothing is missing [offline-view]", async ({ serve, open }) => {
  const server = await serve();
  const page = await open();
  const failed = [];
  page.on("requestfailed", (request) => failed.push(request.url()));
  page.on("response", (response) => response.status() >= 400 && failed.push(`${response.status()} ${response.url()}`));
  await enter(page, server.link);
  await page.waitForLoadState("networkidle");
  assert.equal(await page.locator("figure.interactive").count(), 7);
  assert.equal(await page.locator("figure.interactive .figure").count(), 7);
  assert.equal(await page.locator(".trouble").count(), 0);
  assert.ok(await page.evaluate(() => document.fonts.check('1em "Source Serif 4"')));
  assert.deepEqual(failed.filter((url) => !url.endsWith("config.json")), []);
});

test("every figure says what its rows, columns, lengths and shades are [axes-said]", async ({ serve, open }) => {
  const server = await serve();
  const page = await open();
  await enter(page, server.link);
  const figures = page.locator("figure.interactive");
  for (let i = 0; i < (await figures.count()); i++) {
    const figure = figures.nth(i);
    const reads = await figure.locator(".reads").textContent();
    assert.match(reads, /[Rr]ow|[Ll]eft|side by side/, reads);
    assert.ok((await figure.locator("table caption").count()) >= 1);
    assert.ok((await figure.locator(".says").textContent()).length > 20);
    if ((await figure.locator(".bars").count()) > 0) assert.match(reads, /bar|Weight/);
  }
  assert.match(await page.locator("[data-figure=masks] .reads").textContent(), /Rows are queries.*columns are keys/);
});

test("the lesson and its picture both say that the diagonal is read [diagonal]", async ({ serve, open }) => {
  const server = await serve();
  const page = await open();
  await enter(page, server.link);
  const text = (await page.locator("#masks").textContent()).replace(/\s+/g, " ");
  assert.match(text, /Is the diagonal masked\? No: position t reads position t/);
  assert.match(text, /The diagonal belongs to a causal mask: position i reads position i/);
  for (let i = 0; i < 6; i++) {
    assert.equal(await page.getByRole("button", { name: `query ${i}, key ${i}: may read` }).count(), 1);
  }
});

test("the mask is painted by keyboard, and the first empty row is named", async ({ serve, open }) => {
  const server = await serve();
  const page = await open();
  await enter(page, server.link);
  const says = page.locator("[data-figure=masks] .says");
  await page.getByRole("button", { name: "query 0, key 0: may read" }).focus();
  await page.keyboard.press("Space");
  assert.match(await says.textContent(), /^Query 0 may read nothing/);
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("End");
  await page.keyboard.press("Space");
  await page.keyboard.press("Home");
  await page.keyboard.press("ArrowUp");
  await page.keyboard.press("Space");
  assert.match(await says.textContent(), /query 1 reads a later position.*leakage/);
  const padding = page.getByRole("checkbox", { name: "Padding" });
  await padding.check();
  assert.match(await says.textContent(), /^Query 0 may read nothing/);
  assert.match(await page.locator("[data-figure=masks] .row-mark.empty").first().textContent(), /first empty row/);
});

test("figures move by keyboard and pointer, and their tables say the same", async ({ serve, open }) => {
  const server = await serve();
  const page = await open();
  await enter(page, server.link);
  const overflow = page.locator("[data-figure=overflow]");
  await overflow.getByRole("slider").focus();
  await page.keyboard.press("End");
  assert.match(await overflow.locator(".says").textContent(), /float64 overflows.*NaN and NaN.*0\.731 and 0\.269/);
  const sharp = page.locator("[data-figure=sharpness]");
  await sharp.getByRole("slider").focus();
  await page.keyboard.press("Home");
  assert.match(await sharp.locator(".says").textContent(), /^Factor 0: .*3\.000 of 3 keys/);
  const same = page.locator("[data-figure=same-output]");
  await same.getByRole("slider").focus();
  await page.keyboard.press("Home");
  assert.match(await same.locator(".says").textContent(), /0\.49, 0\.02, 0\.49 the output is \[1\.000, 1\.000\]/);
  const vectors = page.locator("[data-figure=vectors]");
  const key = vectors.getByRole("slider", { name: "key 1" });
  await key.scrollIntoViewIfNeeded();
  const box = await key.locator(".ring").boundingBox();
  await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width / 2 + 40, box.y + box.height / 2 + 20, { steps: 4 });
  await page.mouse.up();
  assert.notEqual(await key.getAttribute("aria-valuetext"), "x 0, y 1");
  const typed = vectors.getByRole("spinbutton", { name: "query, x" });
  await typed.fill("0");
  await typed.press("Enter");
  assert.match(await vectors.locator(".says").textContent(), /^The query \[0, /);
});

test("two tabs lose neither's text", async ({ serve, open }) => {
  const server = await serve();
  const one = await open();
  await enter(one, server.link);
  const two = await one.context().newPage();
  await two.goto(server.link);
  await ready(two);
  const area = (page) => page.locator(".margin textarea").first();
  await area(one).fill("from the first tab");
  await one.locator(".margin .state", { hasText: "Saved" }).first().waitFor();
  await area(two).fill("from the second tab");
  const conflict = two.locator(".conflict").first();
  await conflict.waitFor();
  assert.match(await conflict.textContent(), /from the first tab/);
  await conflict.getByRole("button", { name: "Keep both" }).click();
  await two.locator(".margin .state", { hasText: "Saved" }).first().waitFor();
  await two.reload();
  await ready(two);
  assert.equal(await area(two).inputValue(), "from the second tab\n\nfrom the first tab");
});

test("a reloaded conflict is still one, in notes and in the lab, and a third tab changes nothing", async ({ serve, open }) => {
  const server = await serve();
  const one = await open();
  await enter(one, server.link);
  const tab = async () => {
    const page = await one.context().newPage();
    page.on("pageerror", (error) => one.troubles.push(error.message));
    await page.goto(new URL(server.link).origin);
    await ready(page);
    return page;
  };
  const kept = async (kind) => (await one.evaluate(async () => (await fetch("api/notebook")).json()))[kind][0];
  const note = (page) => page.locator(".margin textarea").first();
  const two = await tab();
  await note(one).fill("from one");
  await one.locator(".margin .state", { hasText: "Saved" }).first().waitFor();
  await note(two).fill("from two");
  await two.locator(".conflict").first().waitFor();
  await two.reload();
  await ready(two);
  await two.locator(".conflict", { hasText: "from one" }).first().waitFor();
  assert.equal(await note(two).inputValue(), "from two");
  const three = await tab();
  assert.equal(await note(three).inputValue(), "from one");
  assert.equal(await three.locator(".conflict").count(), 0);
  await note(three).fill("from one, seen by three");
  await three.locator(".margin .state", { hasText: "Saved" }).first().waitFor();
  await two.reload();
  await ready(two);
  await two.locator(".conflict", { hasText: "seen by three" }).first().waitFor();
  assert.equal((await kept("notes")).text, "from one, seen by three");
  // A tab that is closed with its conflict open has left a text; it is offered, and not taken by itself.
  await two.close();
  await three.reload();
  await ready(three);
  const left = three.locator(".conflict", { hasText: "A tab that was closed" });
  await left.filter({ hasText: "from two" }).first().waitFor();
  assert.equal((await kept("notes")).text, "from one, seen by three");
  await to(three, "#/notebook");
  await left.first().waitFor();
  await to(three, "#/lesson/attention");
  await left.first().getByRole("button", { name: "Keep both" }).click();
  await three.locator(".margin .state", { hasText: "Saved" }).first().waitFor();
  assert.equal((await kept("notes")).text, "from one, seen by three\n\nfrom two");
  assert.equal(await left.count(), 0);
  // The same in the lab's editor.
  await to(one, "#/lab/attention");
  await to(three, "#/lab/attention");
  await type(one, "first = 1\n");
  await one.locator(".lab-buttons .state", { hasText: "Saved" }).waitFor();
  await type(three, "third = 3\n");
  await three.locator(".conflict", { hasText: "first = 1" }).waitFor();
  await three.reload();
  await three.locator(".conflict", { hasText: "first = 1" }).waitFor();
  assert.equal((await kept("drafts")).code, "first = 1\n");
  await three.getByRole("button", { name: "Keep mine" }).click();
  await three.locator(".lab-buttons .state", { hasText: "Saved" }).waitFor();
  assert.equal((await kept("drafts")).code, "third = 3\n");
});

test("a copy of a tab is a tab of its own", async ({ serve, open }) => {
  const server = await serve();
  const page = await open();
  await enter(page, server.link);
  const [copy] = await Promise.all([page.waitForEvent("popup"), page.evaluate(() => void open(location.href))]);
  await ready(copy);
  const name = (tab) => tab.evaluate(() => sessionStorage.getItem("qkv-tab"));
  const [mine, its] = [await name(page), await name(copy)];
  assert.ok(mine && its && mine !== its);
  await page.reload();
  await ready(page);
  assert.equal(await name(page), mine);
});

test("what was typed in the lab is there when one comes back to it", async ({ serve, open }) => {
  const server = await serve();
  const page = await open();
  await enter(page, server.link, "#/lab/attention");
  for (const code of ["typed = 'first'\n", "typed = 'second'\n", ""]) {
    await type(page, code || "typed = 'soon gone'\n");
    if (!code) await page.keyboard.press("Control+a");
    if (!code) await page.keyboard.press("Delete");
    await page.locator(".lab-buttons .state", { hasText: "Saved" }).waitFor();
    await to(page, "#/lesson/attention");
    await page.locator("section.section").first().waitFor();
    await to(page, "#/lab/attention");
    assert.equal((await page.locator(".cm-line").allTextContents()).join("\n"), code);
    assert.equal(await page.locator(".conflict").count(), 0);
  }
  // An emptied editor stays empty, and the first text is a button away.
  await page.reload();
  await ready(page);
  assert.equal((await page.locator(".cm-line").allTextContents()).join("\n"), "");
  await page.getByRole("button", { name: "Start over" }).click();
  await page.locator(".cm-content", { hasText: "def attend" }).waitFor();
  // A note goes the same way, the notebook among the places where it is seen.
  await to(page, "#/lesson/attention");
  await page.locator(".margin textarea").first().fill("a note, just typed");
  await to(page, "#/notebook");
  assert.equal(await page.locator(".book-note textarea").first().inputValue(), "a note, just typed");
  await page.locator(".book-note textarea").first().fill("edited there");
  await to(page, "#/lesson/attention");
  await page.waitForFunction(() => document.querySelector(".margin textarea")?.value === "edited there");
  await page.locator(".margin textarea").first().evaluate((area) => {
    area.value = `half a pair ${String.fromCharCode(0xd83d)}`;
    area.dispatchEvent(new Event("input"));
  });
  await page.locator(".margin .state", { hasText: "half of a character" }).first().waitFor();
});

test("a server that goes away costs nothing", async ({ serve, open }) => {
  const server = await serve();
  const page = await open();
  await enter(page, server.link);
  await server.stop();
  await page.locator(".margin textarea").first().fill("typed into the void");
  await page.locator(".margin .state.bad", { hasText: "Not saved" }).first().waitFor();
  page.troubles.length = 0; // the browser logs the refused connection
  assert.equal(await page.locator(".margin textarea").first().inputValue(), "typed into the void");
});

test("motion is off for who wants none, and the colours can be chosen", async ({ serve, open }) => {
  const server = await serve();
  const page = await open({ colorScheme: "light" });
  await enter(page, server.link);
  const transition = await page.locator(".bar").first().evaluate((bar) => getComputedStyle(bar).transitionDuration);
  assert.equal(transition, "0s");
  const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const light = await ground();
  const button = page.locator("#theme");
  await button.click();
  await button.click();
  assert.equal(await button.getAttribute("aria-label"), "Colours: dark");
  assert.notEqual(await ground(), light);
  await page.reload();
  await ready(page);
  assert.notEqual(await ground(), light);
});

test("a keyboard finds the text first", async ({ serve, open }) => {
  const server = await serve();
  const page = await open();
  await enter(page, server.link);
  await tabTo(page, "Skip to the text", { limit: 3 });
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.id), "main");
});
