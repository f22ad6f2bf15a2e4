// The whole walk through the lesson, three times: with a mouse where people use one, on a phone, and by keyboard alone.

import assert from "node:assert/strict";
import { rmSync } from "node:fs";
import { enter, grade, ready, settled, solution, tabTo, test, to, type } from "./harness.mjs";

const WRONG = solution.replace("/ sqrt(len(query))", "/ len(query)");
const NOTE = "Queries ask, keys address, values contribute.";

test("the whole walk", (tools) => walk(tools, {}, byMouse));
test("the whole walk at 390 px", (tools) => walk(tools, { viewport: { width: 390, height: 844 }, hasTouch: true }, byMouse));
test("the whole walk by keyboard alone", (tools) => walk(tools, {}, byKeyboard));

/** `press` goes to the control of that name and uses it. */
const byMouse = {
  press: async (page, role, name) => page.getByRole(role, { name, exact: typeof name === "string" }).first().click(),
  focus: async (page, role, name) => page.getByRole(role, { name, exact: typeof name === "string" }).first().focus(),
};
const byKeyboard = {
  press: async (page, role, name) => {
    await tabTo(page, name);
    await page.keyboard.press(role === "checkbox" || role === "radio" ? "Space" : "Enter");
  },
  focus: (page, _, name) => tabTo(page, name),
};

async function walk({ serve, open }, options, by) {
  const server = await serve();
  const page = await open(options);
  await enter(page, server.link);
  const narrow = options.viewport !== undefined;
  const wide = async () => {
    const width = await page.evaluate(() => document.documentElement.scrollWidth);
    if (narrow) assert.ok(width <= 390, `the page is ${width} px wide`);
  };

  // Reads.
  assert.equal(await page.locator("section.section").count(), 9);
  await wide();

  // Drags a figure by keyboard.
  await by.focus(page, "slider", "query");
  const before = await page.locator(".figure .says").first().textContent();
  for (let i = 0; i < 5; i++) await page.keyboard.press("ArrowUp");
  const after = await page.locator(".figure .says").first().textContent();
  assert.notEqual(after, before);
  assert.match(after, /The query \[1,\s0\.9\]/);

  // Writes a note and bookmarks.
  await by.focus(page, "textbox", /^In your own words: what would change/);
  await page.keyboard.type(NOTE);
  await page.locator(".margin .state", { hasText: "Saved" }).first().waitFor();
  await page.evaluate(() => scrollTo(0, 0));
  if (by === byKeyboard) {
    await tabTo(page, "Bookmark: From scores to a mixture");
    await page.keyboard.press("Enter");
  } else await by.press(page, "button", "Bookmark: From scores to a mixture");
  await page.locator('.bookmark[aria-pressed="true"]').waitFor();

  // Traces, forwards and backwards.
  await by.press(page, "button", "Open it step by step");
  if (by === byKeyboard) await tabTo(page, "Next step →");
  else await by.focus(page, "button", "Next step →");
  for (let i = 0; i < 9; i++) await page.keyboard.press("Enter");
  assert.equal(await page.locator(".step-name").first().textContent(), "Step 10 of 10: context");
  await page.keyboard.press("ArrowLeft");
  assert.equal(await page.locator(".step-name").first().textContent(), "Step 9 of 10: contributions");
  assert.match(await page.locator('[aria-current="step"]').first().textContent(), /^contributions = /);
  await wide();

  // Checks himself, first wrongly.
  if (by === byKeyboard) {
    // One stop for the whole group of choices: arrows go from one to the next.
    await tabTo(page, /^Because it saves/);
    await page.keyboard.press("Space");
    await by.press(page, "button", "Check");
    await page.locator(".verdict", { hasText: "Not that one" }).waitFor();
    await tabTo(page, /^Because it saves/, { back: true });
    await page.keyboard.press("ArrowDown");
  } else {
    await by.press(page, "radio", /^Because it saves/);
    await by.press(page, "button", "Check");
    await page.locator(".verdict", { hasText: "Not that one" }).waitFor();
    await by.press(page, "radio", /^Because at position t/);
  }
  await by.press(page, "button", "Check");
  await page.locator(".verdict", { hasText: "Yes." }).waitFor();

  // Reloads: all of it is still there.
  await page.reload();
  await ready(page);
  assert.equal(await page.locator(".margin textarea").first().inputValue(), NOTE);
  assert.equal(await page.locator('.bookmark[aria-pressed="true"]').count(), 1);

  // Codes a wrong attend.
  if (by === byKeyboard) await by.press(page, "link", "Lab");
  else await to(page, "#/lab/attention");
  await page.locator(".cm-content").waitFor();
  if (by === byKeyboard) {
    await tabTo(page, /^Your attend, Python code/);
    await page.keyboard.press("Control+a");
    await page.keyboard.insertText(WRONG);
    await page.keyboard.press("Escape");
    await by.press(page, "button", "Grade");
    await settled(page);
  } else {
    await type(page, WRONG);
    await grade(page);
  }
  const failure = await page.locator(".failure").textContent();
  assert.match(failure, /Clause B1/);
  assert.match(failure, /Likely cause/);
  assert.match(failure, /attend\(\[/);
  await wide();

  // Then a right one, and passes.
  if (by === byKeyboard) {
    await tabTo(page, /^Your attend, Python code/, { back: true });
    await page.keyboard.press("Control+a");
    await page.keyboard.insertText(solution);
    await page.keyboard.press("Control+Enter");
    await settled(page);
    await page.keyboard.press("Escape");
  } else {
    await type(page, solution);
    await grade(page);
  }
  await page.locator(".banner.good", { hasText: "Passed." }).waitFor();
  await page.locator(".lab-fact.on").first().waitFor();

  // Runs it on the real head.
  await by.press(page, "button", "Run my attend on a real head");
  await page.locator(".banner", { hasText: "Your attend reproduces the model." }).waitFor();
  await wide();

  // A failure that the learner wants to test.
  await by.focus(page, "textbox", /^keys/);
  await page.keyboard.press("Control+a");
  await page.keyboard.type("1 nan; 0 1");
  await by.focus(page, "textbox", "Why");
  await page.keyboard.type("a NaN in a key");
  await by.press(page, "button", "Test it");
  await page.locator(".failure-result .banner", { hasText: "clause D2" }).waitFor();

  // Marks complete. Neither fact made the other.
  if (by === byKeyboard) {
    // Backwards out of the failures, over the editor, which Esc lets one leave, to the link above it.
    await tabTo(page, /^Your attend, Python code/, { back: true });
    await page.keyboard.press("Escape");
    await tabTo(page, "Attention as content-dependent weighted retrieval", { back: true });
    await page.keyboard.press("Enter");
  } else await to(page, "#/lesson/attention");
  await page.locator(".completed-toggle").waitFor();
  assert.equal(await page.locator(".own-fact.on").count(), 0, "passing the lab has marked the lesson");
  await by.press(page, "checkbox", "I have completed this lesson");
  await page.locator(".own-fact.on").first().waitFor({ state: "attached" });

  // Finds all of it in My notebook.
  if (by === byKeyboard) {
    await tabTo(page, /^My notebook/, { back: true });
    await page.keyboard.press("Enter");
  } else await to(page, "#/notebook");
  await found(page);
  await wide();
  await by.focus(page, "searchbox", "Search");
  await page.keyboard.type("address contribute");
  await page.locator(".state", { hasText: "1 of " }).waitFor();
  await page.keyboard.press("Control+a");
  await page.keyboard.press("Delete");

  // Exports, wipes, imports, and finds it again.
  const [download] = await Promise.all([page.waitForEvent("download"), by.press(page, "button", "Export as JSON")]);
  const file = await download.path();
  await server.stop();
  for (const end of ["", "-wal", "-shm"]) rmSync(server.notebook + end, { force: true });
  const second = await serve(server.notebook);
  await enter(page, second.link, "#/notebook");
  await page.locator(".hint", { hasText: "No bookmark yet." }).waitFor();
  assert.equal(await page.locator(".book-note").count(), 0);
  const [chooser] = await Promise.all([page.waitForEvent("filechooser"), by.press(page, "button", "Import…")]);
  await chooser.setFiles(file);
  await page.locator(".import-preview", { hasText: "New: " }).waitFor();
  await page.keyboard.press("Enter"); // the focus is on Import
  await page.locator(".message", { hasText: "Imported" }).waitFor();
  await found(page);
}

async function found(page) {
  await page.locator(".book-note textarea").first().waitFor();
  assert.equal(await page.locator(".book-note textarea").first().inputValue(), NOTE);
  assert.equal(await page.locator(".book-list a", { hasText: "From scores to a mixture" }).count(), 1);
  assert.equal(await page.locator(".lab-fact.on").count(), 1);
  assert.equal(await page.locator(".own-fact.on").count(), 1);
  assert.equal(await page.locator(".attempt").count(), 2);
  assert.equal(await page.locator(".attempt-mark.good").count(), 1);
  assert.match(await page.locator(".kept-cases, .book-list").allTextContents().then((texts) => texts.join(" ")), /a NaN in a key/);
}
