// The lab under friendly and hostile hands.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { enter, grade, ready, settingsOf, settled, solution, tabTo, test, type, violations } from "./harness.mjs";

/** The promise is a message within 5 s of the moment the code starts: what it came to, or that the machine is busy. */
const PROMISE = 5000;

/** Programs of the grader's own zoo, and those that only a page has to fear. */
const ZOO = {
  ...Object.fromEntries(
    readdirSync(join(settingsOf.learn, "hostile"))
      .filter((name) => name.endsWith(".py"))
      .map((name) => [name.slice(0, -3), readFileSync(join(settingsOf.learn, "hostile", name), "utf8")]),
  ),
  imports_javascript: "import js\njs.postMessage('passed')\n",
  runs_javascript:
    "from pyodide.code import run_js\nrun_js('fetch(\"/api/notebook\", {method: \"POST\"})')\ndef attend(*a): return [1.0], [1.0]\n",
  reaches_the_network:
    "import urllib.request\ndef attend(*a): return urllib.request.urlopen('http://127.0.0.1/api/notebook')\n",
  swallows_everything:
    "def attend(*a):\n    while True:\n        try:\n            while True: pass\n        except BaseException:\n            pass\n",
  one_long_call: "def attend(*a): return pow(7, 7 ** 9), 1\n",
};

/** Starts the grading and gives how long the first sentence took after the code began, and how slowly the page answered. */
async function attack(page, code) {
  await type(page, code);
  await page.evaluate(() => {
    const state = document.querySelector(".work-state");
    window.told = { began: 0, said: 0 };
    new MutationObserver(() => {
      const text = state.textContent;
      if (/^Grading/.test(text) && !window.told.began) window.told.began = performance.now();
      if (/^(Stopped|Python itself|Graded)|machine is busy/.test(text) && !window.told.said) window.told.said = performance.now();
    }).observe(state, { childList: true, characterData: true, subtree: true });
  });
  await page.getByRole("button", { name: "Grade", exact: true }).click();
  let slowest = 0;
  for (;;) {
    const asked = Date.now();
    const { said } = await page.evaluate(() => window.told);
    slowest = Math.max(slowest, Date.now() - asked);
    if (said) break;
    await page.waitForTimeout(100);
  }
  await settled(page);
  const { began, said } = await page.evaluate(() => window.told);
  assert.match(await page.locator(".work-state").textContent(), /^(Stopped|Python itself|Graded)/);
  return { took: said - began, slowest };
}

test("a zoo of hostile programs [frozen-tab] [deaf-interrupt]", async ({ serve, open }) => {
  const server = await serve();
  const page = await open();
  const asked = [];
  page.on("request", (request) => {
    if (request.method() !== "GET") asked.push(`${request.method()} ${new URL(request.url()).pathname}`);
  });
  await enter(page, server.link, "#/lab/attention");
  const told = [];
  for (const [name, code] of Object.entries(ZOO)) {
    const { took, slowest } = await attack(page, code);
    const report = await page.locator(".result").textContent();
    told.push(`${name}: ${Math.round(took)} ms, page ${slowest} ms: ${(await page.locator(".work-state").textContent()).slice(0, 90)}`);
    assert.ok(took <= PROMISE, `${name}: a message after ${took} ms`);
    assert.ok(slowest <= 1000, `${name}: the page was silent for ${slowest} ms`);
    assert.doesNotMatch(report, /^Passed/, `${name} passed`);
    assert.match(report, /Stopped|Python itself|Not passed/, name);
    const lines = await page.locator(".cm-line").allTextContents();
    assert.equal(lines.join("\n"), code, `${name}: the editor's text has changed`);
  }
  console.error(told.join("\n"));
  assert.ok(Object.keys(ZOO).length >= 12);
  // The next run works.
  await type(page, solution);
  assert.equal(await grade(page), "Graded: passed.");
  // Nothing but the learner's own saves went to the server.
  for (const one of asked) assert.match(one, /^(PUT \/api\/drafts\/attention|POST \/api\/attempts)$/);
});

test("every run starts in a clean Python", async ({ serve, open }) => {
  const server = await serve();
  const page = await open();
  await enter(page, server.link, "#/lab/attention");
  await type(page, "import builtins\nbuiltins.left = 1\nprint('left it')\n");
  await page.keyboard.press("Shift+Enter");
  await settled(page);
  assert.equal(await page.locator("pre.output").textContent(), "left it\n");
  await type(page, "import builtins\nprint(hasattr(builtins, 'left'))\ndef attend(*a): pass\n");
  await page.keyboard.press("Shift+Enter");
  assert.equal(await settled(page), "It ran to its end.");
  assert.equal(await page.locator("pre.output").textContent(), "False\n");
});

test("a program that never ends has said what it printed, and Stop stops it", async ({ serve, open }) => {
  const server = await serve();
  const page = await open();
  await enter(page, server.link, "#/lab/attention");
  await type(page, "print('hello')\nwhile True: print('x' * 100)\n");
  await page.keyboard.press("Shift+Enter");
  await page.locator("pre.output", { hasText: "hello" }).waitFor();
  await page.getByRole("button", { name: "Stop" }).click();
  assert.match(await settled(page), /^Stopped by you after/);
  assert.ok((await page.locator("pre.output").textContent()).length <= 4200);
});

test("typing and reloading within a second loses nothing [lost-code]", async ({ serve, open }) => {
  const server = await serve();
  const page = await open();
  await enter(page, server.link, "#/lab/attention");
  const code = "def attend(query, keys, values, allowed):\n    return 'typed just now'\n";
  await type(page, code);
  await page.reload();
  await ready(page);
  await page.locator(".cm-content", { hasText: "typed just now" }).waitFor();
});

test("starting over keeps what it replaces [lost-code]", async ({ serve, open }) => {
  const server = await serve();
  const page = await open();
  await enter(page, server.link, "#/lab/attention");
  const text = async () => (await page.locator(".cm-line").allTextContents()).join("\n");
  const first = await text();
  const mine = "def attend(query, keys, values, allowed):\n    return 'an hour of work'";
  await type(page, mine);
  await page.locator(".lab-buttons .state", { hasText: "Saved" }).waitFor();
  await page.getByRole("button", { name: "Start over" }).click();
  const offered = page.locator(".conflict", { hasText: "This text of yours was replaced" });
  await offered.waitFor();
  assert.equal(await text(), first);
  // Away and back, and after a reload, when the editor's own history is gone.
  await page.evaluate(() => (location.hash = "#/notebook"));
  await offered.waitFor();
  await page.evaluate(() => (location.hash = "#/lab/attention"));
  await page.locator(".cm-content", { hasText: "def attend" }).waitFor();
  await page.reload();
  await ready(page);
  assert.equal(await text(), first);
  // What was written since is kept in the same way when the old text takes its place.
  await type(page, "since = 1");
  await page.getByRole("button", { name: "Take it instead" }).click();
  assert.equal(await text(), mine);
  await offered.filter({ hasText: "since = 1" }).waitFor();
  await page.getByRole("button", { name: "Throw it away" }).click();
  assert.equal(await offered.count(), 0);
  await page.locator(".lab-buttons .state", { hasText: "Saved" }).waitFor();
  // Where it cannot be kept, nothing is replaced.
  await page.evaluate(() => (Storage.prototype.setItem = () => { throw new Error("full"); }));
  await page.getByRole("button", { name: "Start over" }).click();
  await page.locator("#voice .bad", { hasText: "nothing was replaced" }).waitFor();
  assert.equal(await text(), mine);
});

test("an attempt that cannot be saved waits until it can", async ({ serve, open }) => {
  const server = await serve();
  const page = await open();
  await enter(page, server.link, "#/lab/attention");
  await page.route("**/api/attempts", (route) => route.fulfill({ status: 507, json: { error: "the disk is full" } }));
  await type(page, solution);
  assert.equal(await grade(page), "Graded: passed.");
  await page.locator(".unkept", { hasText: "Not in your notebook yet: the disk is full" }).waitFor();
  assert.equal(await page.locator(".lab-fact.on").count(), 0);
  await page.unroute("**/api/attempts");
  await page.getByRole("button", { name: "Keep it now" }).click();
  await page.locator(".lab-fact.on").waitFor();
  assert.equal(await page.locator(".unkept").textContent(), "");
  page.troubles.length = 0; // the browser logs the refusal
});

test("Tab does not trap, and the hint is visible [tab-trap]", async ({ serve, open }) => {
  const server = await serve();
  const page = await open();
  await enter(page, server.link, "#/lab/attention");
  await page.locator(".cm-content").focus();
  assert.match(await page.locator(".editor-hint").textContent(), /Esc, then Tab, leaves/);
  assert.ok(await page.locator(".editor-hint").isVisible());
  await page.keyboard.press("Tab");
  const inside = () => page.evaluate(() => document.activeElement.classList.contains("editor"));
  assert.ok(await inside(), "Tab alone indents");
  await page.keyboard.press("Escape");
  assert.match(await page.locator(".editor-hint").textContent(), /Tab now leaves/);
  // The editor's own way out closes after two seconds; nobody has to hurry here.
  await page.waitForTimeout(2300);
  await page.keyboard.press("Tab");
  assert.ok(!(await inside()), "Esc then Tab has not left the editor");
  await tabTo(page, /^Your attend/, { back: true });
  await page.keyboard.press("Escape");
  await page.keyboard.press("Shift+Tab");
  assert.ok(!(await inside()), "Esc then Shift+Tab has not left the editor");
});

test("hints come one by one, and a solution is recorded", async ({ serve, open }) => {
  const server = await serve();
  const page = await open();
  await enter(page, server.link, "#/lab/attention");
  await type(page, "def attend(query, keys, values, allowed):\n    return [1.0 / len(keys)] * len(keys), values[0]\n");
  await grade(page);
  assert.equal(await page.locator(".hints li").count(), 0);
  await page.getByRole("button", { name: "Show a hint" }).click();
  assert.equal(await page.locator(".hints li").count(), 1);
  await page.getByRole("button", { name: /^Next hint/ }).click();
  assert.equal(await page.locator(".hints li").count(), 2);
  await page.getByRole("button", { name: "Trace this input" }).click();
  await page.locator("dialog .step-name", { hasText: "Step 1 of 10" }).waitFor();
  await page.keyboard.press("Escape");
  // What cannot be written down is not shown.
  await page.route("**/api/attempts", (route) => route.fulfill({ status: 507, json: { error: "the disk is full" } }));
  await page.getByRole("button", { name: "Show a solution" }).click();
  await page.getByRole("button", { name: "Show it" }).click();
  await page.locator("#voice .bad", { hasText: "the disk is full" }).waitFor();
  assert.equal(await page.locator("pre.solution").count(), 0);
  await page.unroute("**/api/attempts");
  page.troubles.length = 0; // the browser logs the refusal
  await page.getByRole("button", { name: "Show a solution" }).click();
  await page.getByRole("button", { name: "Show it" }).click();
  await page.locator("pre.solution").waitFor();
  const [submission] = await Promise.all([
    page.waitForEvent("download"),
    page.getByRole("button", { name: "Download submission" }).click(),
  ]);
  const { schema, code, report } = JSON.parse(readFileSync(await submission.path(), "utf8"));
  assert.equal(schema, "qkv-lab-submission/1");
  assert.match(code, /1\.0 \/ len/);
  assert.equal(report.passed, false);
  await type(page, solution);
  await grade(page);
  await page.evaluate(() => (location.hash = "#/notebook"));
  await page.locator(".attempt").first().waitFor();
  assert.equal(await page.locator(".attempt", { hasText: "after a solution was shown" }).count(), 2);
});

/** Tries an input on what the editor holds, and gives what the form says then. */
async function tryInput(page, kind, text) {
  const form = page.locator(".failure-form");
  await form.getByLabel("Written as").selectOption(kind);
  await form.locator("textarea").fill(text);
  await form.getByRole("button", { name: "Test it" }).click();
  await form.locator(".failure-result").locator(".banner, .trouble").first().waitFor();
  await page.waitForFunction(() => !document.querySelector(".failure-form .solid").disabled);
  return form.locator(".failure-result").textContent();
}
const keptCases = (page) => page.locator(".failure-form .kept-cases li").count();

test("an own failure joins the lab's cases", async ({ serve, open }) => {
  const server = await serve();
  const page = await open();
  await enter(page, server.link, "#/lab/attention");
  await type(page, solution);
  assert.match(await tryInput(page, "python", "attend([1e200], [[1e200]], [[1]], [True])"), /holds.*clause D3/);
  assert.match(await tryInput(page, "json", '{"query": [1], "keys": [], "values": []}'), /holds.*clause A3/);
  assert.match(await tryInput(page, "python", "attend(open('x'))"), /This is no input yet/);
  // Nested, so deeply that a parser ends on it: refused in a sentence, and nothing kept.
  const deep = (n) => `attend(${"[".repeat(n)}1${"]".repeat(n)}, [[1]], [[1]], [True])`;
  for (const text of [deep(300), deep(20_000), `attend([${"-".repeat(30_000)}1], [[1]], [[1]], [True])`]) {
    assert.match(await tryInput(page, "python", text), /^This is no input yet: .*(deep|long|Python nor JSON)/);
  }
  assert.match(await tryInput(page, "json", `{"query": ${"[".repeat(300)}${"]".repeat(300)}}`), /^This is no input yet: .*deep/);
  assert.equal(await keptCases(page), 2);
  // What was typed in each way is there when one comes back to it, also after a reload.
  const form = page.locator(".failure-form");
  await form.getByLabel(/^query/).or(form.locator("textarea")).first().fill("typed as JSON");
  await form.getByLabel("Written as").selectOption("numbers");
  await form.getByLabel(/^keys/).fill("7 7; 7 7");
  await form.getByLabel("Why").fill("because");
  for (const again of [false, true]) {
    if (again) {
      await page.reload();
      await ready(page);
    }
    await form.getByLabel("Written as").selectOption("python");
    assert.match(await form.locator("textarea").inputValue(), /^attend\(\[-+1/);
    await form.getByLabel("Written as").selectOption("json");
    assert.equal(await form.locator("textarea").inputValue(), "typed as JSON");
    await form.getByLabel("Written as").selectOption("numbers");
    assert.equal(await form.getByLabel(/^keys/).inputValue(), "7 7; 7 7");
    assert.equal(await form.getByLabel("Why").inputValue(), "because");
  }
  assert.equal(await grade(page), "Graded: passed.");
  assert.match(await page.locator(".result .banner").first().textContent(), /Passed\. 44 of 44/);
});

test("an own failure shows what libraries do with such an input", async ({ serve, open }) => {
  const server = await serve();
  const page = await open();
  await enter(page, server.link, "#/lab/attention");
  await type(page, solution);
  const section = page.getByRole("region", { name: "What libraries do with such an input" });
  const asked = async (text) => {
    await tryInput(page, "python", text);
    await section.locator("table, .hint").last().waitFor();
    return section.locator("caption").allTextContents();
  };
  assert.deepEqual(await asked("attend([1], [[1]], [[2]], [False])"), ["Asked: a row that may read nothing"]);
  // A row says what is done, and by whom, in which version.
  const row = section.getByRole("row", { name: /mean of every V/ });
  assert.match(await row.getByRole("cell").textContent(), /JAX \d+\.\d+\.\d+/);
  assert.match(await section.getByRole("rowheader").first().textContent(), /^answers 0/);
  assert.match(await section.locator(".hint").textContent(), /qkv audit --all: \d{4}-\d\d-\d\d, qkv /);
  // It is beside the status, which would read it out, and not in it.
  assert.equal(await page.locator("[role=status] table").count(), 0);
  assert.deepEqual(await asked("attend([1], [[1], [nan]], [[2], [nan]], [True, False])"), [
    "Asked: a forbidden key of NaN, forbidden by mask",
    "Asked: a forbidden value of NaN, forbidden by mask",
  ]);
  for (const [width, colorScheme] of [[1280, "light"], [390, "dark"], [390, "light"]]) {
    await page.setViewportSize({ width, height: 900 });
    await page.emulateMedia({ colorScheme });
    assert.deepEqual(await violations(page), []);
    assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= width, `${width} px`);
    if (settingsOf.shots) await section.screenshot({ path: join(settingsOf.shots, `elsewhere-${width}-${colorScheme}.png`) });
  }
  // What nobody was asked is said, and so is what cannot be read.
  assert.deepEqual(await asked("attend([1], [[1]], [[2, 3], [4]], [True])"), []);
  assert.match(await section.textContent(), /None of them was asked for an input of this kind/);
  await page.route("**/api/elsewhere.json", (route) => route.fulfill({ status: 503, json: { error: "no such luck" } }));
  await page.reload();
  await ready(page);
  assert.deepEqual(await asked("attend([1], [[1]], [[2]], [False])"), []);
  assert.match(await section.textContent(), /cannot be read now: no such luck/);
  await page.unroute("**/api/elsewhere.json");
  page.troubles.length = 0; // the browser logs the refusal
  assert.equal((await asked("attend([1], [[1]], [[2]], [False])")).length, 1);
});

test("a failure on which the own function hangs, dies or is not there", async ({ serve, open }) => {
  const server = await serve();
  const page = await open();
  await enter(page, server.link, "#/lab/attention");
  await type(page, "def attend(query, keys, values, allowed):\n    while True: pass\n");
  const text = "attend([1], [[1]], [[2]], [True])";
  assert.match(await tryInput(page, "python", text), /breaks clause C1.*did not answer within.*Clause C1: /);
  assert.match(await tryInput(page, "python", "attend([nan], [[1]], [[2]], [True])"), /breaks clause D2.*did not answer within/);
  await type(page, "import os\ndef attend(query, keys, values, allowed):\n    os._exit(3)\n");
  assert.match(await tryInput(page, "python", text), /breaks clause C1.*ended.*Clause C1: /);
  // Once more on one input is the same case, with what came out last.
  assert.equal(await keptCases(page), 2);
  assert.match(await page.locator(".failure-form .kept-cases").textContent(), /ended/);
  // What does not load was not tried.
  await type(page, "while True: pass\n");
  assert.match(await tryInput(page, "python", text), /^Nothing was tried.*Stopped after/);
  await type(page, "def attend(:\n");
  assert.match(await tryInput(page, "python", text), /^Nothing was tried.*SyntaxError in line 1/);
  assert.equal(await keptCases(page), 2);
  // They join the lab, and a right function passes all.
  await type(page, solution);
  assert.equal(await grade(page), "Graded: passed.");
  assert.match(await page.locator(".banner.good").first().textContent(), /44 of 44/);
  // After a reload the last report stands where it stood.
  await page.reload();
  await ready(page);
  await page.locator(".result .banner.good", { hasText: "44 of 44" }).waitFor();
  assert.equal(await page.locator(".empty-result").count(), 0);
});

test("Pyodide reports what CPython reports", async ({ serve, open }) => {
  const server = await serve();
  const page = await open();
  await enter(page, server.link);
  const sources = {};
  for (const kind of ["right", "wrong"]) {
    for (const name of readdirSync(join(settingsOf.learn, kind))) {
      if (name.endsWith(".py")) sources[`${kind}/${name}`] = readFileSync(join(settingsOf.learn, kind, name), "utf8");
    }
  }
  const { execFile } = await import("node:child_process");
  // Messages and last digits belong to an interpreter; `essence` leaves them out of both.
  const python = (what, given) =>
    new Promise((resolve, reject) => {
      const code = `import json, sys\nfrom qkv.learn.grader import essence, grade\n${what}`;
      const options = { env: { ...process.env, PYTHONPATH: settingsOf.home }, maxBuffer: 1 << 28 };
      const child = execFile(settingsOf.python, ["-c", code], options, (error, said) => (error ? reject(error) : resolve(JSON.parse(said))));
      child.stdin.end(JSON.stringify(given));
    });
  // Both at once.
  const grading = python("print(json.dumps({name: essence(grade(source)) for name, source in json.load(sys.stdin).items()}))", sources);
  const pyodide = await page.evaluate(async (all) => {
    const interpreter = await WebAssembly.compileStreaming(fetch("pyodide/pyodide.asm.wasm"));
    const library = await (await fetch("pyodide/python_stdlib.zip")).arrayBuffer();
    const files = {};
    for (const name of ["plain.py", "grader.py", "alike.py"]) files[name] = await (await fetch(`py/${name}`)).text();
    const worker = new Worker("assets/worker.js", { type: "module" });
    const ask = (message, done) =>
      new Promise((resolve, reject) => {
        worker.onmessage = ({ data }) => (data.type === done ? resolve(data.result) : data.type === "died" && reject(new Error(data.message)));
        worker.postMessage(message);
      });
    await ask({ type: "start", interpreter, library, files }, "ready");
    const reports = {};
    for (const [name, source] of Object.entries(all)) reports[name] = await ask({ type: "grade", source, extra: [], skip: {} }, "done");
    return reports;
  }, sources);
  const here = await python("print(json.dumps({name: essence(report) for name, report in json.load(sys.stdin).items()}))", pyodide);
  const there = await grading;
  assert.equal(Object.keys(here).length, Object.keys(sources).length);
  for (const [name, report] of Object.entries(there)) {
    assert.equal(report.passed, name.startsWith("right/"), name);
    // As text: on its way through JavaScript a zero has lost its sign on one side.
    assert.equal(JSON.stringify(here[name]), JSON.stringify(report), name);
  }
});
