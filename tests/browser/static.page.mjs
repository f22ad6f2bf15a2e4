// The static site under a sub-path: the same page, its notebook in the browser, its solution left out.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { extname, join } from "node:path";
import { grade, ready, settingsOf, solution, test, to, type, violations } from "./harness.mjs";

const TYPES = { ".html": "text/html", ".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css", ".wasm": "application/wasm", ".json": "application/json", ".svg": "image/svg+xml", ".woff2": "font/woff2" };

/** The site of a static export under a sub-path, and its address. */
async function site(body) {
  const folder = join(mkdtempSync(join(tmpdir(), "qkv-site-")), "site");
  execFileSync(settingsOf.python, ["-m", "qkv", "learn", "export", folder, "--no-solutions"], {
    env: { ...process.env, QKV_LEARN_ASSETS: settingsOf.page, PYTHONPATH: settingsOf.home },
  });
  assert.ok(!existsSync(join(folder, "api/lessons/attention/solution.json")));
  const server = createServer((request, response) => {
    const path = new URL(request.url, "http://x").pathname.replace(/^\/some\/course\//, "");
    const file = join(folder, path === "" ? "index.html" : path);
    if (!request.url.startsWith("/some/course/") || !existsSync(file)) return response.writeHead(404).end();
    response.writeHead(200, { "Content-Type": TYPES[extname(file)] ?? "application/octet-stream" });
    response.end(readFileSync(file));
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  try {
    await body(`http://127.0.0.1:${server.address().port}/some/course/`);
  } finally {
    server.close();
    rmSync(folder, { recursive: true });
  }
}

test("a static site under a sub-path keeps the notebook in the browser [lost-notes]", async ({ open }) => {
  await site(async (address) => {
    const page = await open();
    await page.goto(address);
    await ready(page);
    assert.equal(await page.locator("section.section").count(), 9);
    await page.locator(".margin textarea").first().fill("kept in this browser");
    await page.locator(".margin .state", { hasText: "Saved" }).first().waitFor();
    await page.getByRole("button", { name: /^Bookmark/ }).first().click();
    await page.reload();
    await ready(page);
    assert.equal(await page.locator(".margin textarea").first().inputValue(), "kept in this browser");
    await to(page, "#/lab/attention");
    assert.equal(await page.getByRole("button", { name: "Show a solution" }).count(), 0);
    await type(page, solution);
    assert.equal(await grade(page), "Graded: passed.");
    await page.getByRole("button", { name: "Run my attend on a real head" }).click();
    await page.locator(".banner", { hasText: "Your attend reproduces the model." }).waitFor();
    await to(page, "#/notebook");
    await page.locator(".hint", { hasText: "may wipe it" }).waitFor();
    const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Export as JSON" }).click()]);
    const file = await download.path();
    await page.evaluate(() => localStorage.clear());
    await page.reload();
    await ready(page);
    assert.equal(await page.locator(".book-note").count(), 0);
    const [chooser] = await Promise.all([page.waitForEvent("filechooser"), page.getByRole("button", { name: "Import…" }).click()]);
    await chooser.setFiles(file);
    await page.getByRole("button", { name: "Import", exact: true }).click();
    await page.locator(".book-note").waitFor();
    assert.equal(await page.locator(".book-note textarea").inputValue(), "kept in this browser");
    assert.equal(await page.locator(".lab-fact.on").count(), 1);
  });
});

test("a notebook that the browser has damaged does not lock the page", async ({ open }) => {
  await site(async (address) => {
    const page = await open();
    const place = `qkv-notebook ${new URL(address).pathname}`;
    const stored = (text) => page.evaluate(([name, value]) => localStorage.setItem(name, value), [place, text]);
    await page.goto(address);
    await ready(page);
    const cut = '{"schema":1,"notes":[{"lesson":"attention","sec';
    await stored(cut);
    await page.reload();
    await ready(page);
    assert.equal(await page.locator("section.section").count(), 9);
    await page.getByRole("alert").filter({ hasText: "This browser’s notebook was damaged" }).waitFor();
    assert.deepEqual(await violations(page), []);
    const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Download the damaged text" }).click()]);
    assert.equal(readFileSync(await download.path(), "utf8"), cut);
    await page.getByRole("button", { name: "Throw it away" }).click();
    assert.equal(await page.getByRole("alert").count(), 0);
    // A report that an older page took in, and one that has the grader's shape and not its content.
    const attempt = { id: "q1", lesson: "attention", time: "2026-01-01T00:00:00Z", code: "c", passed: false, solution_shown: false };
    const hollow = { passed: false, counts: { passed: 0, cases: 1 }, cases: [{ title: "a", status: "failed", failure: { clause: null, hints: 5 } }] };
    await stored(JSON.stringify({ attempts: [{ ...attempt, report: hollow }, { ...attempt, id: "q2", report: {} }] }));
    await page.reload();
    await ready(page);
    await to(page, "#/lab/attention");
    await page.locator(".result .trouble", { hasText: "cannot be shown" }).waitFor();
    await to(page, "#/notebook");
    await page.locator(".attempt", { hasText: "no report" }).waitFor();
    assert.equal(await page.locator(".attempt").count(), 2);
    // An import like it is refused, and Import stays where it is.
    const [chooser] = await Promise.all([page.waitForEvent("filechooser"), page.getByRole("button", { name: "Import…" }).click()]);
    const document = { format: "qkv-notebook", version: 1, attempts: [{ ...attempt, report: {} }] };
    await chooser.setFiles({ name: "x.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify(document)) });
    await page.locator("#voice .bad", { hasText: "attempts[0].report is not null or a report of the grader" }).waitFor();
    // Should something else be impossible to draw, Export and Import are there all the same.
    await to(page, "#/lesson/attention");
    await page.locator("section.section").first().waitFor();
    await page.evaluate(() => (Date.prototype.toLocaleString = () => { throw new Error("no dates today"); }));
    await to(page, "#/notebook");
    await page.locator(".trouble", { hasText: "cannot be shown (no dates today). Export has it." }).waitFor();
    await page.getByRole("button", { name: "Import…" }).waitFor();
    const [saved] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Export as JSON" }).click()]);
    assert.equal(JSON.parse(readFileSync(await saved.path(), "utf8")).attempts.length, 2);
  });
});
