// "I have completed this lesson" and "lab passed": two facts, two looks, neither made from the other.

import type { App } from "./app.ts";
import { day } from "./app.ts";
import { h, put } from "./dom.ts";

export function labFact(app: App, lesson: string): HTMLElement {
  const since = app.notebook.lab_passed[lesson];
  return h(
    "span",
    { class: since ? "fact lab-fact on" : "fact lab-fact" },
    h("span", { class: "fact-mark", "aria-hidden": "true" }, since ? "✓" : "–"),
    since ? `Lab passed, ${day(since)}` : "Lab not passed yet",
  );
}

export function completedFact(app: App, lesson: string): HTMLElement {
  const since = app.notebook.completed[lesson];
  return h(
    "span",
    { class: since ? "fact own-fact on" : "fact own-fact" },
    h("span", { class: "fact-mark", "aria-hidden": "true" }, since ? "●" : "○"),
    since ? `Completed, in my judgement, ${day(since)}` : "Not marked as completed",
  );
}

/** The learner's own judgement, as a box to tick. */
export function completedToggle(app: App, lesson: string, changed: () => void): HTMLElement {
  const input = h("input", { type: "checkbox" });
  const element = h("label", { class: "completed-toggle" }, input, h("span", {}, "I have completed this lesson"));
  const show = () => (input.checked = lesson in app.notebook.completed);
  input.addEventListener("change", async () => {
    const on = input.checked;
    await app.trying(async () => {
      await app.store.setCompleted(lesson, on);
      await app.refresh();
      app.say(on ? "Marked as completed." : "No longer marked as completed.");
    });
    show();
    changed();
  });
  show();
  return element;
}

export function bookmarkButton(app: App, lesson: string, section: string, title: string, changed: () => void): HTMLElement {
  const marked = () => app.notebook.bookmarks.some((mark) => mark.lesson === lesson && mark.section === section);
  const button = h("button", { type: "button", class: "bookmark" });
  const show = () => {
    button.setAttribute("aria-pressed", String(marked()));
    button.setAttribute("aria-label", `Bookmark: ${title}`);
    button.title = marked() ? "Take the bookmark out" : "Bookmark this section";
    put(button, marked() ? "★" : "☆");
  };
  button.addEventListener("click", async () => {
    const on = !marked();
    await app.trying(async () => {
      await app.store.setBookmark(lesson, section, on);
      await app.refresh();
      app.say(on ? "Bookmarked." : "Bookmark taken out.");
    });
    show();
    changed();
  });
  show();
  return button;
}
