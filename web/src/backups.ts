// What was typed and is not confirmed yet, in the browser's own store: an entry for each notebook, tab and text, so that
// no tab writes over what another has, and what a closed one left behind is still found.

import { fresh } from "./tab.ts";

export interface Backup {
  text: string;
  /** The revision that it was typed on. */
  base: number;
  /** What was sent on the way to it and never confirmed: should the notebook hold one of these, it is this tab's own. */
  sent: string[];
  time: string;
  /** It was not left behind by a tab: the learner put the first text in its place. */
  replaced?: boolean;
}

/** What a tab that is gone had not saved, or what was replaced. */
export interface Leftover extends Backup {
  /** Which text it is, as in `keep`. */
  key: string;
  tab: string;
}

type Entries = Pick<Storage, "getItem" | "setItem" | "removeItem" | "key" | "length">;

export class Backups {
  private readonly prefix: string;

  constructor(
    notebook: string,
    private readonly tab: { id: string; open(): Promise<Set<string>> },
    private readonly entries: Entries | undefined,
  ) {
    this.prefix = `qkv-unsaved ${notebook} `;
  }

  own(key: string): Backup | null {
    return this.read(this.place(this.tab.id, key));
  }

  /** A full or forbidden store is no trouble: the notebook itself is still written. */
  keep(key: string, text: string, base: number, sent: string[]): void {
    const backup: Backup = { text, base, sent, time: new Date().toISOString() };
    try {
      this.entries?.setItem(this.place(this.tab.id, key), JSON.stringify(backup));
    } catch {
      // As said.
    }
  }

  /** Keeps a text that is about to be replaced, as what no open tab works on; gives whether the store has it. */
  keepReplaced(key: string, text: string): boolean {
    const backup: Backup = { text, base: 0, sent: [], time: new Date().toISOString(), replaced: true };
    const place = this.place(`replaced-${fresh()}`, key);
    try {
      this.entries?.setItem(place, JSON.stringify(backup));
    } catch {
      // A full or forbidden store: told by what follows.
    }
    return this.read(place)?.text === text;
  }

  drop(key: string, tab = this.tab.id): void {
    try {
      this.entries?.removeItem(this.place(tab, key));
    } catch {
      // As above.
    }
  }

  /** What tabs that are no longer open have left, and what was replaced, the latest first. */
  async leftovers(): Promise<Leftover[]> {
    const open = await this.tab.open();
    const found: Leftover[] = [];
    try {
      for (let i = 0; i < (this.entries?.length ?? 0); i++) {
        const place = this.entries?.key(i) ?? "";
        if (!place.startsWith(this.prefix)) continue;
        const [tab, ...key] = place.slice(this.prefix.length).split(" ");
        const backup = open.has(tab) ? null : this.read(place);
        if (backup) found.push({ ...backup, key: key.join(" "), tab });
      }
    } catch {
      // As above.
    }
    return found.sort((a, b) => (a.time < b.time ? 1 : -1));
  }

  private place(tab: string, key: string): string {
    return `${this.prefix}${tab} ${key}`;
  }

  private read(place: string): Backup | null {
    try {
      const backup = JSON.parse(this.entries?.getItem(place) ?? "null");
      return typeof backup?.text === "string" ? { base: 0, sent: [], time: "", ...backup } : null;
    } catch {
      return null;
    }
  }
}
