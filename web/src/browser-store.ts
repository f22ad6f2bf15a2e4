// The notebook in the browser, for a static site: one document in localStorage, read again before every write, so that
// two tabs meet in it. Import merges as qkv.learn.notebook_document does: no word of either side is lost.

import { markdown } from "./notebook-markdown.ts";
import { Conflict, type Entry, type Preview, type Saved, type Store } from "./store.ts";
import { fresh as newId } from "./tab.ts";
import type { Attempt, Draft, Failure, Note, Notebook } from "./types.ts";

const PLACE = `qkv-notebook ${location.pathname}`;

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
    return merge(load(), checked(document));
  }

  async takeIn(document: unknown): Promise<Preview> {
    const incoming = checked(document);
    return change((book) => merge(book, incoming));
  }
}

function load(): Notebook {
  const stored = localStorage.getItem(PLACE);
  return { ...structuredClone(EMPTY), ...(stored ? JSON.parse(stored) : {}) };
}

function change<T>(action: (book: Notebook) => T): T {
  const book = load();
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
  const { schema: _, id: ___, ...content } = book;
  const bare = <T extends Note | Draft>({ revision: __, ...rest }: T) => ({ updated: now(), ...rest });
  return {
    format: "qkv-notebook",
    version: 1,
    exported: now(),
    ...content,
    notes: book.notes.filter((note) => note.text).map(bare),
    drafts: book.drafts.map(bare),
  };
}

function checked(document: any): any {
  if (document?.format !== "qkv-notebook" || document.version !== 1) {
    throw new Error("This is no exported notebook. Choose the JSON file that Export saved.");
  }
  return document;
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
      if (old && JSON.stringify(old) === JSON.stringify(row)) preview.equal += 1;
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
