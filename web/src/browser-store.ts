// The notebook in the browser, for a static site: one document in localStorage, read again before every write, so that
// two tabs meet in it. Import merges as qkv.learn.notebook_document does: no word of either side is lost. What cannot be
// read of it is set aside as it is, and the rest goes on.

import { bare, checkedDocument, salvaged } from "./notebook-document.ts";
import { markdown } from "./notebook-markdown.ts";
import { Conflict, type Damaged, type Entry, type Preview, type Saved, type Store } from "./store.ts";
import { fresh as newId } from "./tab.ts";
import type { Attempt, Failure, Notebook } from "./types.ts";

const PLACE = `qkv-notebook ${location.pathname}`;
const ASIDE = `qkv-damaged ${location.pathname} `;

const EMPTY: Notebook = {
  schema: 1,
  id: location.pathname,
  notes: [],
  bookmarks: [],
  drafts: [],
  attempts: [],
  lab_passed: {},
  completed: {},
  cases: [],
};

export class BrowserStore implements Store {
  readonly inBrowser = true;

  async read(): Promise<Notebook> {
    return load();
  }

  async saveNote(lesson: string, section: string, text: string, baseRevision: number): Promise<Saved> {
    return change((book) => {
      const old = book.notes.find((note) => note.lesson === lesson && note.section === section);
      const saved = next(old, text, baseRevision);
      if (old) Object.assign(old, { text, ...saved });
      else book.notes.push({ lesson, section, text, ...saved });
      return saved;
    });
  }

  async saveDraft(lesson: string, code: string, baseRevision: number): Promise<Saved> {
    return change((book) => {
      const old = book.drafts.find((draft) => draft.lesson === lesson);
      const saved = next(old && { text: old.code, revision: old.revision }, code, baseRevision);
      if (old) Object.assign(old, { code, ...saved });
      else book.drafts.push({ lesson, code, ...saved });
      return saved;
    });
  }

  async setBookmark(lesson: string, section: string, on: boolean): Promise<void> {
    change((book) => {
      book.bookmarks = book.bookmarks.filter((mark) => mark.lesson !== lesson || mark.section !== section);
      if (on) book.bookmarks.push({ lesson, section });
    });
  }

  async setCompleted(lesson: string, on: boolean): Promise<void> {
    change((book) => {
      if (on) book.completed[lesson] ??= now();
      else delete book.completed[lesson];
    });
  }

  async addAttempt(attempt: Omit<Attempt, "id" | "time">): Promise<{ id: string }> {
    return change((book) => {
      const kept = { id: newId(), time: now(), ...attempt };
      book.attempts.push(kept);
      if (attempt.passed) book.lab_passed[attempt.lesson] ??= kept.time;
      return { id: kept.id };
    });
  }

  async addCase(failure: Omit<Failure, "id" | "time">): Promise<{ id: string }> {
    return change((book) => {
      const kept = { id: newId(), time: now(), ...failure };
      book.cases.push(kept);
      return { id: kept.id };
    });
  }

  async deleteCase(id: string): Promise<void> {
    change((book) => {
      book.cases = book.cases.filter((failure) => failure.id !== id);
    });
  }

  async exportText(format: "json" | "markdown"): Promise<string> {
    const document = exported(load());
    if (format === "json") return JSON.stringify(document, null, 1);
    const lessons = await fetch("api/lessons.json");
    // Without the list it is still all there, by the lessons' ids.
    return markdown(document, lessons.ok ? await lessons.json() : []);
  }

  async previewImport(document: unknown): Promise<Preview> {
    return merge(load(), checkedDocument(document));
  }

  async takeIn(document: unknown): Promise<Preview> {
    const incoming = checkedDocument(document);
    return change((book) => merge(book, incoming));
  }

  damaged(): Damaged[] {
    const places = Array.from({ length: localStorage.length }, (_, i) => localStorage.key(i) ?? "");
    const stored = localStorage.getItem(PLACE);
    // One for which there was no room elsewhere.
    const unmoved = stored !== null && !salvaged(stored).whole ? [PLACE] : [];
    const found = [...unmoved, ...places.filter((place) => place.startsWith(ASIDE)).sort()];
    return found.map((place) => ({ place, text: localStorage.getItem(place) ?? "" }));
  }

  throwAway({ place, text }: Damaged): void {
    if (place === PLACE) localStorage.setItem(PLACE, JSON.stringify(bookOf(text).book));
    else localStorage.removeItem(place);
  }
}

function bookOf(stored: string): { book: Notebook; whole: boolean } {
  const { content, whole } = salvaged(stored);
  return { book: { ...structuredClone(EMPTY), ...content }, whole };
}

function load(): Notebook {
  const stored = localStorage.getItem(PLACE);
  if (stored === null) return structuredClone(EMPTY);
  const { book, whole } = bookOf(stored);
  if (!whole) setAside(stored, book);
  return book;
}

/** Moves a text that cannot be read whole out of the way of the next write; where there is no room, it stays. */
function setAside(stored: string, book: Notebook): void {
  const place = `${ASIDE}${now()}`;
  try {
    // First taken away, since a store may have room for one of it and not for two.
    localStorage.removeItem(PLACE);
    localStorage.setItem(place, stored);
    localStorage.setItem(PLACE, JSON.stringify(book));
  } catch {
    localStorage.removeItem(place);
    localStorage.setItem(PLACE, stored);
  }
}

function change<T>(action: (book: Notebook) => T): T {
  const book = load();
  const stored = localStorage.getItem(PLACE);
  if (stored !== null && !salvaged(stored).whole) {
    throw new Error("The browser's store is full of a notebook that cannot be read. Download it and throw it away, above.");
  }
  const result = action(book);
  try {
    localStorage.setItem(PLACE, JSON.stringify(book));
  } catch {
    throw new Error("The browser's store is full. Export the notebook and remove old attempts.");
  }
  return result;
}

function next(old: { text: string; revision: number } | undefined, text: string, baseRevision: number): Saved {
  if (old?.text && old.revision !== baseRevision && old.text !== text) throw new Conflict(old.text, old.revision);
  return { revision: (old?.revision ?? 0) + 1, updated: now() };
}

const now = () => new Date().toISOString();

function exported(book: Notebook): any {
  const rows = (name: "notes" | "bookmarks" | "drafts" | "attempts" | "cases") => book[name].map((row) => bare(name, { updated: now(), ...row }));
  return {
    format: "qkv-notebook",
    version: 1,
    exported: now(),
    notes: rows("notes").filter((note) => note.text),
    bookmarks: rows("bookmarks"),
    drafts: rows("drafts"),
    attempts: rows("attempts"),
    lab_passed: book.lab_passed,
    completed: book.completed,
    cases: rows("cases"),
  };
}

/** Changes `book` to hold both, and says what it did. */
function merge(book: Notebook, incoming: any): Preview {
  const preview: Preview = { new: [], changed: [], conflicts: [], equal: 0 };
  const text = (kind: "note" | "draft", key: "text" | "code", mine: any[], theirs: any[], fit: (a: any, b: any) => boolean) => {
    for (const row of theirs ?? []) {
      const old = mine.find((one) => fit(one, row));
      const about: Entry = { kind, lesson: row.lesson, section: row.section };
      const [here, there] = [String(old?.[key] ?? ""), String(row[key])];
      if (here.startsWith(there) || here.includes(`\n${there}`)) {
        preview.equal += 1;
        continue;
      }
      const mark = kind === "note" ? "---" : "# ---";
      const behind = kind === "note" ? there : there.split("\n").map((line) => `# ${line}`).join("\n");
      const grows = there.startsWith(here) || there.includes(here);
      const merged = grows ? there : `${here}\n\n${mark} imported, written ${row.updated} ---\n${behind}`;
      if (here.includes(behind)) {
        preview.equal += 1;
        continue;
      }
      const list = !here ? preview.new : grows ? preview.changed : preview.conflicts;
      list.push({ ...about, here, there, merged });
      if (old) Object.assign(old, { [key]: merged, revision: old.revision + 1, updated: now() });
      else mine.push({ ...row, [key]: merged, revision: 1 });
    }
  };
  const same = (a: any, b: any) => a.lesson === b.lesson && a.section === b.section;
  text("note", "text", book.notes, incoming.notes, same);
  text("draft", "code", book.drafts, incoming.drafts, same);
  for (const mark of incoming.bookmarks ?? []) {
    if (book.bookmarks.some((one) => same(one, mark))) preview.equal += 1;
    else {
      book.bookmarks.push(mark);
      preview.new.push({ kind: "bookmark", ...mark });
    }
  }
  for (const kind of ["attempts", "cases"] as const) {
    for (const row of incoming[kind] ?? []) {
      const old = (book[kind] as { id: string }[]).find((one) => one.id === row.id);
      const about = { kind: kind.slice(0, -1), lesson: row.lesson, time: row.time };
      if (old && JSON.stringify(bare(kind, old)) === JSON.stringify(row)) preview.equal += 1;
      else {
        (old ? preview.conflicts : preview.new).push(about);
        (book[kind] as unknown[]).push(old ? { ...row, id: newId() } : row);
      }
    }
  }
  for (const kind of ["lab_passed", "completed"] as const) {
    for (const [lesson, time] of Object.entries<string>(incoming[kind] ?? {})) {
      const since = book[kind][lesson];
      if (since !== undefined && since <= time) preview.equal += 1;
      else {
        (since === undefined ? preview.new : preview.changed).push({ kind, lesson, time });
        book[kind][lesson] = time;
      }
    }
  }
  return preview;
}
