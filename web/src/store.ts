// Where the notebook lives. The page talks to a Store and does not know which one: the server's file, or, in a static
// site, the browser's own store.

import { BrowserStore } from "./browser-store.ts";
import { ServerStore } from "./server-store.ts";
import type { Attempt, Config, Failure, Notebook } from "./types.ts";

/** Another tab saved a newer text; nothing was overwritten. */
export class Conflict extends Error {
  readonly text: string;
  readonly revision: number;
  constructor(text: string, revision: number) {
    super("another tab saved a newer text");
    this.text = text;
    this.revision = revision;
  }
}

export interface Saved {
  revision: number;
  updated: string;
}

export interface Preview {
  new: Entry[];
  changed: Entry[];
  conflicts: Entry[];
  equal: number;
}

export interface Entry {
  kind: string;
  lesson?: string;
  section?: string;
  time?: string;
  here?: string;
  there?: string;
  merged?: string;
}

/** A stored notebook that could not be read whole, word for word. */
export interface Damaged {
  place: string;
  text: string;
}

export interface Store {
  /** Whether notes can be lost when the browser tidies up, so that the page reminds of the export. */
  readonly inBrowser: boolean;
  read(): Promise<Notebook>;
  saveNote(lesson: string, section: string, text: string, baseRevision: number): Promise<Saved>;
  saveDraft(lesson: string, code: string, baseRevision: number): Promise<Saved>;
  setBookmark(lesson: string, section: string, on: boolean): Promise<void>;
  setCompleted(lesson: string, on: boolean): Promise<void>;
  addAttempt(attempt: Omit<Attempt, "id" | "time">): Promise<{ id: string }>;
  addCase(failure: Omit<Failure, "id" | "time">): Promise<{ id: string }>;
  deleteCase(id: string): Promise<void>;
  exportText(format: "json" | "markdown"): Promise<string>;
  previewImport(document: unknown): Promise<Preview>;
  takeIn(document: unknown): Promise<Preview>;
  /** What was set aside because it could not be read; only a browser's store has any. */
  damaged?(): Damaged[];
  throwAway?(damaged: Damaged): void;
}

export function openStore(config: Config): Store {
  return config.static ? new BrowserStore() : new ServerStore();
}
