// Draws docs/images/lesson.png and lab.png again: `qkv learn` on an empty notebook, in a headless Chromium.
//
//     node tools/lesson_pictures.mjs PYTHON [FOLDER]
//
// PYTHON has qkv[learn]; the page is built from web/ for it. Both pictures come out alike each time on one machine.

import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "../web/node_modules/playwright-core/index.mjs";

const root = fileURLToPath(new URL("..", import.meta.url));
const [python, folder = join(root, "docs/images")] = process.argv.slice(2);
const browsers = ["chromium", "chromium-browser", "google-chrome"];

/** A solution whose mistake is in the second line: the scores are not divided by the root of the width. */
const CODE = `from math import exp


def attend(query, keys, values, allowed):
    scores = [sum(q * k for q, k in zip(query, key)) for key in keys]
    maximum = max(s for s, may in zip(scores, allowed) if may)
    exps = [exp(s - maximum) if may else 0.0
            for s, may in zip(scores, allowed)]
    total = sum(exps)
    weights = [e / total for e in exps]
    context = [sum(w * x for w, x in zip(weights, column))
               for column in zip(*values)]
    return weights, context
`;

function installed() {
  if (process.env.QKV_CHROMIUM) return process.env.QKV_CHROMIUM;
  for (const name of browsers) {
    try {
      return execFileSync("sh", ["-c", `command -v ${name}`]).toString().trim();
    } catch {
      // The next one, then.
    }
  }
  throw new Error("a Chromium is needed: apt-get install chromium, or set QKV_CHROMIUM");
}

async function draw(place) {
  const page = join(place, "page");
  execFileSync(process.execPath, ["build.mjs"], { cwd: join(root, "web"), env: { ...process.env, QKV_PAGE_OUT: page } });
  const server = spawn(python, ["-m", "qkv", "learn", "--no-browser", "--port", "0", "--data", join(place, "notebook.db"), "--json"], {
    env: { ...process.env, QKV_LEARN_ASSETS: page },
    stdio: ["ignore", "pipe", "inherit"],
  });
  const browser = await chromium.launch({ executablePath: installed(), args: ["--no-sandbox", "--disable-gpu", "--hide-scrollbars"] });
  try {
    const link = await new Promise((resolve, reject) => {
      let said = "";
      server.stdout.on("data", (chunk) => {
        const found = (said += chunk).match(/http:\/\/127\.0\.0\.1:\d+\/\?token=[\w-]+/);
        if (found) resolve(found[0]);
      });
      server.on("exit", () => reject(new Error(`qkv learn ended: ${said}`)));
    });
    const context = await browser.newContext({ viewport: { width: 1360, height: 900 }, colorScheme: "light", reducedMotion: "reduce" });
    const tab = await context.newPage();
    tab.setDefaultTimeout(120_000);
    await tab.clock.setFixedTime(new Date("2026-01-01T10:00:00"));
    await tab.goto(link);
    await tab.waitForSelector("main[aria-busy=false]");
    await tab.evaluate(() => document.fonts.ready);

    // The lesson: a figure under the sentences that it shows, after its query was turned by the keyboard.
    const query = tab.getByRole("slider", { name: "query" }).first();
    await query.focus();
    for (let i = 0; i < 2; i++) await tab.keyboard.press("ArrowUp");
    await query.blur();
    await tab.evaluate(() => {
      const top = document.querySelector(".top").getBoundingClientRect().height;
      const text = [...document.querySelectorAll("#roles .prose > p")].find((one) => /^Take the query/.test(one.textContent));
      scrollTo(0, scrollY + text.getBoundingClientRect().top - top - 24);
    });
    await tab.waitForTimeout(300);
    await tab.screenshot({ path: join(folder, "lesson.png") });

    // The lab: the smallest input that shows a mistake, both answers, the clause and the likely cause.
    await tab.evaluate(() => (location.hash = "#/lab/attention"));
    await tab.locator(".cm-content").focus();
    await tab.keyboard.press("Control+a");
    await tab.keyboard.insertText(CODE);
    await tab.locator(".lab-buttons .state", { hasText: "Saved" }).waitFor();
    await tab.getByRole("button", { name: "Grade", exact: true }).click();
    await tab.locator(".failure .cause").waitFor();
    await tab.locator(".work-state", { hasText: "Graded" }).waitFor();
    await tab.getByRole("button", { name: "Grade", exact: true }).blur();
    await tab.evaluate(() => scrollTo(0, 0));
    await tab.waitForTimeout(300);
    await tab.screenshot({ path: join(folder, "lab.png") });
  } finally {
    await browser.close();
    server.kill("SIGINT");
    await new Promise((resolve) => (server.exitCode !== null ? resolve() : server.on("exit", resolve)));
  }
}

const place = mkdtempSync(join(tmpdir(), "qkv-pictures-"));
try {
  await draw(place);
} finally {
  rmSync(place, { recursive: true });
}
