// The lesson as something to read: accessible, small, offline, in two tabs, and saying what its pictures mean.

import assert from "node:assert/strict";
import { enter, grade, ready, tabTo, test, to, type, violations } from "./harness.mjs";

test("axe-core finds nothing, light and dark", (tools) => axe(tools, 1280));
test("axe-core finds nothing, light and dark, 390 px", (tools) => axe(tools, 390));

async function axe({ serve, open }, width) {
  const server = await serve();
  const page = await open({ viewport: { width, height: 900 } });
  const nothing = async (where) => {
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      assert.deepEqual(await violations(page), [], `${where}, ${colorScheme}`);
    }
  };
  await enter(page, server.link);
  await page.getByRole("button", { name: "Open it step by step" }).first().click();
  await page.getByRole("button", { name: "Write down a failure to test" }).click();
  await page.locator(".failure-form").waitFor();
  const note = page.locator(".margin textarea").first();
  await note.fill("a note");
  await page.locator(".margin .state", { hasText: "Saved" }).first().waitFor();
  await page.getByRole("button", { name: /^Bookmark/ }).first().click();
  // What another tab wrote, and what a closed one left.
  await page.evaluate(async () => {
    const { id, notes } = await (await fetch("api/notebook")).json();
    const [{ lesson, section, revision }] = notes;
    const body = JSON.stringify({ text: "of another tab", base_revision: revision });
    await fetch(`api/notes/${lesson}/${section}`, { method: "PUT", headers: { "Content-Type": "application/json" }, body });
    const left = JSON.stringify({ text: "left behind", base: 1, sent: [], time: "2026-01-01T00:00:00Z" });
    localStorage.setItem(`qkv-unsaved ${id} gone draft ${lesson}`, left);
  });
  await note.fill("a note, and more");
  await page.locator(".conflict").first().waitFor();
  await nothing("the lesson");
  await page.getByRole("button", { name: "Trace these numbers" }).click();
  await nothing("a trace");
  await page.keyboard.press("Escape");
  await to(page, "#/lab/attention");
  await page.locator(".conflict").waitFor();
  await type(page, "def attend(query, keys, values, allowed):\n    return [1 / len(keys)] * len(keys), values[0]\n");
  await grade(page);
  await page.getByRole("button", { name: "Show a hint" }).click();
  await page.locator(".case-list summary").click();
  await nothing("the lab with a failure");
  await to(page, "#/notebook");
  await page.locator(".attempt summary").first().click();
  await page.locator(".conflict").first().waitFor();
  await nothing("the notebook");
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

test("every cell of a mask is reached by arrow keys, and a table stands beside [cells-unreachable]", async ({ serve, open }) => {
  const server = await serve();
  const page = await open();
  await enter(page, server.link);
  const figure = page.locator("[data-figure=masks]");
  const name = () => page.evaluate(() => document.activeElement.getAttribute("aria-label").match(/query \d+, key \d+/)[0]);
  // One stop of Tab for all cells, and from it every cell.
  assert.equal(await figure.locator('.cell[tabindex="0"]').count(), 1);
  await figure.locator('.cell[tabindex="0"]').focus();
  await page.keyboard.press("Home");
  for (let i = 0; i < 6; i++) await page.keyboard.press("ArrowUp");
  const seen = new Set();
  for (let i = 0; i < 6; i++) {
    for (let j = 0; j < 6; j++) {
      const key = i % 2 ? 5 - j : j;
      assert.equal(await name(), `query ${i}, key ${key}`);
      seen.add(await name());
      if (j < 5) await page.keyboard.press(i % 2 ? "ArrowLeft" : "ArrowRight");
    }
    await page.keyboard.press("ArrowDown");
  }
  assert.equal(seen.size, await figure.locator(".cell").count());
  const rows = figure.locator(".numbers tbody tr");
  assert.equal(await rows.count(), 6);
  assert.match(await rows.nth(2).textContent(), /query 2.*0, 1, 2.*0\.333/);
});

test("weight, contribution and influence stand apart, and disagree [value-weighted]", async ({ serve, open }) => {
  const server = await serve();
  const page = await open();
  await enter(page, server.link);
  const figure = page.locator("[data-figure=contribution]");
  const largest = async () => {
    const panels = await figure.locator(".bars").evaluateAll((all) => all.map((bars) => bars.getAttribute("aria-label")));
    assert.deepEqual(panels.map((label) => label.split(":")[0]), ["Weight", "Share", "Influence"]);
    return panels.map((label) => {
      const rows = label.slice(label.indexOf(":") + 1).split(", ").map((row) => row.trim().match(/^(.*) ([^ ]+)$/));
      return rows.sort((a, b) => Number(b[2].replace("−", "-")) - Number(a[2].replace("−", "-")))[0][1];
    });
  };
  assert.deepEqual(await largest(), ["first token", "red", "first token"]);
  // With a longer value the heaviest key also contributes most; its weight is the same.
  await figure.getByRole("slider").focus();
  const weight = () => figure.locator(".numbers tbody tr").first().locator("td").nth(1).textContent();
  const before = await weight();
  await page.keyboard.press("End");
  assert.deepEqual(await largest(), ["first token", "first token", "first token"]);
  assert.equal(await weight(), before);
});

test("no page scrolls sideways at 390 px, whatever is in it", async ({ serve, open }) => {
  const server = await serve();
  const page = await open({ viewport: { width: 390, height: 844 }, hasTouch: true });
  await enter(page, server.link);
  const word = "x".repeat(400);
  const address = `https://example.org/${"a-very/long".repeat(40)}?q=${"1".repeat(200)}`;
  const wide = `attend([${Array(60).fill("1.2345678901").join(",")}], [[1]], [[1]], [True])`;
  await page.evaluate(
    async ([word, address, wide]) => {
      const send = async (method, path, body) => {
        const answer = await fetch(path, { method, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
        if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
      };
      const [first, second] = (await (await fetch("api/lessons/attention.json")).json()).sections.map((section) => section.id);
      const lesson = "attention";
      await send("PUT", `api/notes/${lesson}/${first}`, { text: word, base_revision: 0 });
      await send("PUT", `api/notes/${lesson}/${second}`, { text: `See ${address}`, base_revision: 0 });
      await send("PUT", `api/drafts/${lesson}`, { code: `raise ValueError("${word}")  # ${word}`, base_revision: 0 });
      const verdict = { status: "failed", sentence: `It broke: ${word}`, failure: null };
      await send("POST", "api/cases", { lesson, form: "python", text: wide, note: word, verdict });
      await send("POST", "api/cases", { lesson, form: "json", text: word, note: address, verdict });
      await send("POST", "api/attempts", { lesson, code: `a = "${word}"`, report: null, passed: false, solution_shown: true });
      // A tab that is gone left this.
      const { id } = await (await fetch("api/notebook")).json();
      const left = JSON.stringify({ text: `${word} unsaved`, base: 1, sent: [], time: "2026-01-01T00:00:00Z" });
      localStorage.setItem(`qkv-unsaved ${id} gone note ${lesson}/${first}`, left);
      localStorage.setItem(`qkv-unsaved ${id} gone draft ${lesson}`, left);
    },
    [word, address, wide],
  );
  await page.reload();
  await ready(page);
  const narrow = async (where) => {
    const far = await page.evaluate(() =>
      [...document.querySelectorAll("body *")]
        .filter((one) => one.getBoundingClientRect().right > innerWidth + 1 && !one.closest("[data-more], .editor, .unseen, .other-text, svg"))
        .map((one) => `${one.tagName}.${one.className}`),
    );
    assert.deepEqual(far, [], where);
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 390, where);
  };
  await page.locator(".conflict").first().waitFor();
  await page.locator("figure.trace > button, .prose summary").evaluateAll((all) => all.forEach((one) => one.click()));
  await page.getByRole("button", { name: "Write down a failure to test" }).click();
  await page.locator(".kept-cases li").first().waitFor();
  await narrow("the lesson");
  // What is cut says so, and where it goes on.
  const cut = page.locator('.scrolls[data-more="right"]').first();
  await cut.evaluate((box) => (box.scrollLeft = 9999));
  await page.locator('.scrolls[data-more="left"]').first().waitFor();
  // Values stand beside their sliders' names, each in one line.
  for (const value of await page.locator(".slider output").all()) {
    const { height } = await value.boundingBox();
    const line = await value.evaluate((one) => parseFloat(getComputedStyle(one).lineHeight));
    assert.ok(height < 1.5 * line, await value.textContent());
  }
  // A short list is one thing.
  const broken = await page.evaluate(() =>
    [...document.querySelectorAll(".prose p, .prose li, .says")].flatMap((block) => block.textContent.match(/\[[^[\]]{1,24}\]/g) ?? []).filter((list) => list.includes(" ")),
  );
  assert.deepEqual(broken, []);
  await to(page, "#/lab/attention");
  await page.locator(".conflict").first().waitFor();
  assert.match(await grade(page), /^Graded/);
  await narrow("the lab");
  await page.locator(".cm-content").focus();
  await page.keyboard.press("Shift+Enter");
  await page.locator(".work-state", { hasText: "ValueError" }).waitFor();
  await narrow("the lab after a run");
  await to(page, "#/notebook");
  await page.locator(".conflict").first().waitFor();
  await page.locator(".attempt summary").evaluateAll((all) => all.forEach((one) => one.click()));
  await page.locator("input[type=file]").setInputFiles({
    name: "notebook.json",
    mimeType: "application/json",
    buffer: Buffer.from(
      JSON.stringify({
        format: "qkv-notebook", version: 1, exported: "2026-01-01T00:00:00.000Z", bookmarks: [], drafts: [], attempts: [], lab_passed: {}, completed: {}, cases: [],
        notes: [{ lesson: "attention", section: "roles", text: word + word, updated: "2026-01-01T00:00:00.000Z" }],
      }),
    ),
  });
  await page.locator(".import-preview h2").waitFor();
  await narrow("the notebook");
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
  assert.match(await same.locator(".says").textContent(), /0\.49, 0\.02, 0\.49 the output is \[1\.000,\s1\.000\]/);
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
  assert.match(await vectors.locator(".says").textContent(), /^The query \[0,\s/);
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
