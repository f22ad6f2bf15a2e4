// A stored notebook that cannot be read whole: said once above the page, with the text to take away.

import type { App } from "./app.ts";
import { download, h, put } from "./dom.ts";

export function damagedNotice(app: App, place: HTMLElement): void {
  const [damaged] = app.store.damaged?.() ?? [];
  if (!damaged) return put(place);
  const save = () => download("qkv-notebook-damaged.txt", "text/plain", damaged.text);
  const drop = () => {
    app.store.throwAway?.(damaged);
    damagedNotice(app, place);
  };
  put(
    place,
    h(
      "section",
      { class: "page conflict", "aria-label": "A damaged notebook" },
      h(
        "p",
        { class: "state bad", role: "alert" },
        "This browser’s notebook was damaged: what can be read of it is here, and the whole text, as it was, is set aside.",
      ),
      h(
        "div",
        { class: "buttons" },
        h("button", { type: "button", class: "quiet", onclick: save }, "Download the damaged text"),
        h("button", { type: "button", class: "quiet", onclick: drop }, "Throw it away"),
      ),
    ),
  );
}
