// The page: which view stands for which address, and what all views share.

import { start, type App, type View } from "./app.ts";
import { damagedNotice } from "./damaged.ts";
import { h, put } from "./dom.ts";
import { completedFact, labFact } from "./facts.ts";
import { reader } from "./reader.ts";
import { markScrolling } from "./scrolls.ts";

const main = document.querySelector("main")!;
const voice = document.querySelector<HTMLElement>("#voice")!;
const menu = document.querySelector<HTMLElement>("#menu")!;
const notice = h("div", {});
main.before(notice);
let view: View | undefined;
let address = "";
let turns = 0;

async function show(app: App): Promise<void> {
  const [, room = "", lesson = "", section = ""] = location.hash.replace(/^#/, "").split("/");
  const here = room === "lesson" ? `lesson/${lesson}` : `${room}/${lesson}`;
  if (here !== address || !view) {
    view?.left?.();
    view = undefined;
    const turn = ++turns;
    let next: View;
    try {
      // What was typed last is in the notebook before another view shows it.
      await app.texts.settled();
      next = await open(app, room, lesson);
    } catch (error) {
      next = failed(`This page cannot be shown: ${(error as Error).message}`);
    }
    // Another address was asked for while this one was being opened.
    if (turn !== turns) return next.left?.();
    view = next;
    const first = address === "";
    address = here;
    put(main, view.element);
    damagedNotice(app, notice);
    document.title = `${view.title} · qkv`;
    view.shown?.();
    scrollTo(0, 0);
    // After a change of view the focus starts where the new one starts; at the first it stays with the browser.
    if (!first) view.element.querySelector<HTMLElement>("h1")?.focus({ preventScroll: true });
    for (const link of menu.querySelectorAll("a")) {
      const [, to] = (link.getAttribute("href") ?? "").replace(/^#/, "").split("/");
      if (to === room || (to === "lesson" && room === "")) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  }
  if (room === "lesson" && section) {
    const target = document.getElementById(section);
    target?.scrollIntoView();
    target?.querySelector<HTMLElement>("h2")?.focus({ preventScroll: true });
  }
}

async function open(app: App, room: string, lesson: string): Promise<View> {
  const only = app.lessons.length === 1 ? app.lessons[0].id : "";
  if (room === "notebook") return (await import("./notebook-view.ts")).notebookView(app);
  if (room === "lab") return (await import("./lab/lab.ts")).labView(app, await app.lesson(lesson || only || app.lessons[0].id));
  if (room === "lesson" && lesson) return reader(app, await app.lesson(lesson));
  if (only) return reader(app, await app.lesson(only));
  return overview(app);
}

function overview(app: App): View {
  return {
    title: "Lessons",
    element: h(
      "div",
      { class: "page" },
      h("h1", { tabindex: "-1" }, "Lessons"),
      ...app.lessons.map((lesson) =>
        h(
          "article",
          { class: "lab-card" },
          h("h2", {}, h("a", { href: `#/lesson/${lesson.id}` }, lesson.title)),
          h("div", { class: "facts" }, labFact(app, lesson.id), completedFact(app, lesson.id)),
        ),
      ),
    ),
  };
}

function failed(message: string): View {
  return { title: "Trouble", element: h("div", { class: "page" }, h("h1", { tabindex: "-1" }, "Trouble"), h("p", {}, message)) };
}

/** Light, dark, or as the system says; kept in this browser alone. */
function theme(): void {
  const button = document.querySelector<HTMLButtonElement>("#theme")!;
  const names = ["system", "light", "dark"];
  let chosen = "system";
  try {
    chosen = localStorage.getItem("qkv-theme") ?? "system";
  } catch {
    // Without a store the choice lasts as long as the page.
  }
  const apply = () => {
    document.documentElement.dataset.theme = chosen;
    button.textContent = { system: "◐", light: "☀", dark: "☾" }[chosen] ?? "◐";
    button.setAttribute("aria-label", `Colours: ${chosen}`);
    button.title = `Colours: ${chosen}`;
  };
  button.addEventListener("click", () => {
    chosen = names[(names.indexOf(chosen) + 1) % names.length];
    apply();
    try {
      localStorage.setItem("qkv-theme", chosen);
    } catch {
      // As above.
    }
  });
  apply();
}

/** The address is the view's, so links inside of a page are followed by hand. */
function innerLinks(): void {
  document.addEventListener("click", (event) => {
    const link = (event.target as Element).closest?.("a[href^='#']");
    const to = link?.getAttribute("href")?.slice(1);
    if (!to || to.startsWith("/")) return;
    event.preventDefault();
    const target = document.getElementById(to);
    target?.scrollIntoView();
    (target?.querySelector<HTMLElement>(":scope > .section-head h2") ?? target)?.focus({ preventScroll: true });
  });
}

theme();
innerLinks();
markScrolling();
try {
  const app = await start(voice);
  if (app.store.inBrowser) menu.querySelector("#in-browser")?.removeAttribute("hidden");
  addEventListener("hashchange", () => void show(app));
  addEventListener("visibilitychange", async () => {
    if (document.visibilityState !== "visible") return;
    try {
      await app.refresh();
      view?.refreshed?.();
    } catch {
      // The server is away; the next save will say so.
    }
  });
  await show(app);
} catch (error) {
  put(main, failed(`The lesson could not be loaded: ${(error as Error).message}`).element);
}
main.setAttribute("aria-busy", "false");
