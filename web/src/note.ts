// A note: a text area that grows, its state in words, and both texts where two tabs disagree.

import { Autosave, type Status } from "./autosave.ts";
import { conflictChoice } from "./conflict.ts";
import { h, put, unique } from "./dom.ts";
import type { Store } from "./store.ts";
import type { Note } from "./types.ts";

export interface NoteField {
  element: HTMLElement;
  offer(text: string, revision: number): void;
  close(): void;
}

export function noteField(
  store: Store,
  lesson: string,
  section: string,
  note: Note | undefined,
  label: Node,
  saved: (text: string) => void = () => undefined,
): NoteField {
  const id = unique("note");
  const state = h("p", { class: "state", role: "status" });
  const choice = h("div", {});
  const area = h("textarea", { id, rows: 3, spellcheck: "true" });
  area.value = note?.text ?? "";
  const autosave = new Autosave(
    `note ${lesson}/${section}`,
    area.value,
    note?.revision ?? 0,
    (text, revision) => store.saveNote(lesson, section, text, revision),
    show,
  );
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
  };
  const left = autosave.unsaved();
  if (left !== null && left !== area.value) {
    set(left);
    autosave.typed(left);
  }

  function show(status: Status): void {
    state.classList.toggle("bad", status.kind === "trouble");
    if (status.kind !== "conflict") put(choice);
    if (status.kind === "clean") state.textContent = "";
    else if (status.kind === "typing") state.textContent = "Saving…";
    else if (status.kind === "saved") {
      state.textContent = area.value.trim() ? `Saved ${status.at.toTimeString().slice(0, 5)}` : "";
      saved(area.value);
    } else if (status.kind === "trouble") state.textContent = `Not saved: ${status.message}`;
    else if (status.kind === "conflict") {
      state.textContent = "";
      const { theirs, revision } = status;
      put(
        choice,
        conflictChoice(() => area.value, theirs, "", (text) => {
          set(text);
          autosave.settle(text, revision);
          put(choice);
          area.focus();
        }),
      );
    }
  }

  const element = h("div", { class: "note" }, h("label", { for: id }, label), area, state, choice);
  requestAnimationFrame(grow);
  return {
    element,
    offer: (text, revision) => {
      if (autosave.offer(text, revision)) set(text);
    },
    close: () => autosave.close(),
  };
}
