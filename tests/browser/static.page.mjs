// The static site under a sub-path: the same page, its notebook in the browser, its solution left out.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { extname, join } from "node:path";
import { grade, ready, settingsOf, solution, test, to, type } from "./harness.mjs";

const TYPES = { ".html": "text/html", ".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css", ".wasm": "application/wasm", ".json": "application/json", ".svg": "image/svg+xml", ".woff2": "font/woff2" };

test("a static site under a sub-path keeps the notebook in the browser [lost-notes]", async ({ open }) => {
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
    const page = await open();
    const address = `http://127.0.0.1:${server.address().port}/some/course/`;
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
  } finally {
    server.close();
    rmSync(folder, { recursive: true });
  }
});
