// What every view shares: the store, the notebook as last read, the lessons, and one polite voice for short messages.

import { Texts, wellFormed, type Autosave } from "./autosave.ts";
import { Backups, type Leftover } from "./backups.ts";
import { h } from "./dom.ts";
import { openStore, type Store } from "./store.ts";
import { thisTab } from "./tab.ts";
import type { Config, Draft, Lesson, LessonEntry, Note, Notebook } from "./types.ts";

export interface App {
  config: Config;
  store: Store;
  lessons: LessonEntry[];
  notebook: Notebook;
  lesson(id: string): Promise<Lesson>;
  texts: Texts;
  /** The note of a section, saved as it is typed. */
  note(lesson: string, section: string): Autosave;
  /** What the editor of a lab holds, saved as it is typed; `starter` until something was. */
  draft(lesson: string, starter: string): Autosave;
  /** What tabs that were closed left unsaved, or what was replaced, of one text or of all, less what the notebook has. */
  leftovers(key?: string): Promise<Leftover[]>;
  forget(left: Leftover): void;
  /** Keeps a text that is about to be replaced among the leftovers; gives whether that worked. */
  keepReplaced(key: string, text: string): boolean;
  /** Reads the notebook again. */
  refresh(): Promise<void>;
  /** Runs something that can fail and says so in words; gives undefined then. */
  trying<T>(action: () => Promise<T>): Promise<T | undefined>;
  say(message: string, bad?: boolean): void;
}

export interface View {
  title: string;
  element: HTMLElement;
  /** Called after the view stands in the page. */
  shown?(): void;
  /** A newer notebook was read. */
  refreshed?(): void;
  left?(): void;
}

export async function json(address: string): Promise<any> {
  const response = await fetch(address);
  if (!response.ok) {
    const answer = await response.json().catch(() => ({}));
    throw new Error(answer.error ?? `${address}: the server answered ${response.status}`);
  }
  return response.json();
}

export async function start(voice: HTMLElement): Promise<App> {
  const config: Config = await json("config.json");
  const store = openStore(config);
  const [lessons, notebook] = await Promise.all([json("api/lessons.json"), store.read()]);
  const known = new Map<string, Promise<Lesson>>();
  const backups = new Backups(notebook.id, await thisTab(), unconfirmed());
  const texts = new Texts(backups);
  for (const event of ["pagehide", "visibilitychange"]) addEventListener(event, () => texts.flush());

  const noteRow = (lesson: string, section: string) =>
    app.notebook.notes.find((one) => one.lesson === lesson && one.section === section);
  const draftRow = (lesson: string) => app.notebook.drafts.find((one) => one.lesson === lesson);
  /** What the notebook has under a key, as it was last read. */
  const kept = (key: string): string | undefined => {
    const [kind, lesson, section] = key.split(/[ /]/);
    return kind === "note" ? noteRow(lesson, section)?.text : draftRow(lesson)?.code;
  };

  const app: App = {
    config,
    store,
    lessons,
    notebook,
    lesson(id) {
      if (!known.has(id)) known.set(id, json(`api/lessons/${id}.json`));
      return known.get(id)!;
    },
    texts,
    note(lesson, section) {
      const row = noteRow(lesson, section);
      return texts.of(`note ${lesson}/${section}`, row?.text ?? "", row?.revision ?? 0, async (text, base) => {
        const saved = await store.saveNote(lesson, section, text, base);
        update<Note>(app.notebook.notes, noteRow(lesson, section), { lesson, section, text, ...saved });
        return saved;
      });
    },
    draft(lesson, starter) {
      const row = draftRow(lesson);
      return texts.of(`draft ${lesson}`, row?.code ?? starter, row?.revision ?? 0, async (code, base) => {
        const saved = await store.saveDraft(lesson, code, base);
        update<Draft>(app.notebook.drafts, draftRow(lesson), { lesson, code, ...saved });
        return saved;
      });
    },
    async leftovers(key) {
      const found = await backups.leftovers();
      for (const left of found) {
        // What was replaced may be in the notebook only until the other text is saved.
        if (!left.replaced && wellFormed(left.text) === (kept(left.key) ?? "")) app.forget(left);
      }
      return found.filter((left) => (!key || left.key === key) && wellFormed(left.text) !== (kept(left.key) ?? ""));
    },
    keepReplaced: (key, text) => backups.keepReplaced(key, text),
    forget: (left) => backups.drop(left.key, left.tab),
    async refresh() {
      app.notebook = await store.read();
    },
    async trying(action) {
      try {
        return await action();
      } catch (error) {
        app.say((error as Error).message, true);
        return undefined;
      }
    },
    say(message, bad = false) {
      const line = h("p", { class: bad ? "message bad" : "message" }, message);
      voice.replaceChildren(line);
      setTimeout(() => line.remove(), bad ? 12000 : 5000);
    },
  };
  return app;
}

/** Where unsaved texts are kept; a browser that forbids its store still has the notebook. */
function unconfirmed(): Storage | undefined {
  try {
    return localStorage;
  } catch {
    return undefined;
  }
}

/** The notebook as this page knows it, after a save was confirmed. */
function update<Row extends Note | Draft>(rows: Row[], old: Row | undefined, row: Row): void {
  if (old) Object.assign(old, row);
  else rows.push(row);
}

export function day(time: string): string {
  const date = new Date(time);
  return Number.isNaN(date.getTime())
    ? time
    : date.toLocaleString("en-GB", { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit" });
}
