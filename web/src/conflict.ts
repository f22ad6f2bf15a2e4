// Two tabs, two texts: both are shown, and nothing is written until a person has chosen.

import { h } from "./dom.ts";

export function conflictChoice(mine: () => string, theirs: string, both: string, take: (text: string) => void): HTMLElement {
  const button = (label: string, text: () => string) =>
    h("button", { type: "button", class: "quiet", onclick: () => take(text()) }, label);
  return h(
    "div",
    { class: "conflict" },
    h("p", { class: "state bad" }, "Another tab saved a different text. Nothing is lost: choose."),
    h("pre", { class: "other-text", tabindex: "0", "aria-label": "The other text" }, theirs || "(empty)"),
    h(
      "div",
      { class: "buttons" },
      button("Keep both", () => `${mine()}\n\n${both}${theirs}`),
      button("Keep mine", mine),
      button("Take the other", () => theirs),
    ),
  );
}
