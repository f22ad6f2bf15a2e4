// A note: a text area that grows, its state in words, and both texts where two tabs disagree.

import type { App } from "./app.ts";
import type { Status } from "./autosave.ts";
import { conflictChoice, offerLeftovers } from "./conflict.ts";
import { h, put, unique } from "./dom.ts";

export interface NoteField {
  element: HTMLElement;
  text(): string;
  offer(text: string, revision: number): void;
  close(): void;
}

export function noteField(app: App, lesson: string, section: string, label: Node): NoteField {
  const id = unique("note");
  const autosave = app.note(lesson, section);
  const state = h("p", { class: "state", role: "status" });
  const choice = h("div", {});
  const left = h("div", {});
  const area = h("textarea", { id, rows: 3, spellcheck: "true" });
  area.value = autosave.text;
  area.addEventListener("input", () => {
    grow();
    autosave.typed(area.value);
  });
  const grow = () => {
    area.style.height = "auto";
    area.style.height = `${area.scrollHeight + 2}px`;
  };
  const set = (text: string) => {
    area.value = text;
    grow();
    area.focus();
  };
  const mine = () => area.value;

  function show(status: Status): void {
    stateWords(state, status, !area.value.trim());
    if (status.kind !== "conflict") return put(choice);
    const take = (text: string) => {
      set(text);
      autosave.settle(text);
    };
    put(choice, conflictChoice(status.theirs, { mine, between: "", take }));
  }
  autosave.watch(show);
  const take = (text: string) => {
    set(text);
    autosave.typed(text);
  };
  void offerLeftovers(app, autosave.key, left, { mine, between: "", take });

  const element = h("div", { class: "note" }, h("label", { for: id }, label), area, state, choice, left);
  requestAnimationFrame(grow);
  return {
    element,
    text: mine,
    offer: (text, revision) => {
      if (autosave.offer(text, revision)) {
        area.value = text;
        grow();
      }
    },
    close: () => autosave.flush(),
  };
}

/** How a text stands, in words; `nothing` if there is none, which needs no word that it is saved. */
export function stateWords(place: HTMLElement, status: Status, nothing = false): void {
  place.classList.toggle("bad", status.kind === "trouble" || (status.kind === "saved" && status.mended));
  place.textContent = words(status, nothing);
}

function words(status: Status, nothing: boolean): string {
  switch (status.kind) {
    case "typing":
      return "Saving…";
    case "trouble":
      return `Not saved: ${status.message}`;
    case "saved":
      if (status.mended) return "Saved, but half of a character in it, which no file can hold, is kept as \ufffd.";
      return nothing ? "" : `Saved ${status.at.toTimeString().slice(0, 5)}`;
    default:
      return "";
  }
}
