// A text that is saved as it is typed: soon after the last key, at once when the tab is left, and kept in the tab's own
// store until the notebook has confirmed it, so that a server that is away costs nothing.

import { later } from "./dom.ts";
import { Conflict, type Saved } from "./store.ts";

export type Status =
  | { kind: "clean" }
  | { kind: "typing" }
  | { kind: "saved"; at: Date }
  | { kind: "conflict"; theirs: string; revision: number }
  | { kind: "trouble"; message: string };

const every = new Set<Autosave>();

export class Autosave {
  private saved: string;
  private busy = false;
  private stopped = false;
  private readonly soon = later(() => void this.write(), 350);
  private readonly place: string;

  constructor(
    key: string,
    private text: string,
    private revision: number,
    private readonly save: (text: string, revision: number) => Promise<Saved>,
    private readonly tell: (status: Status) => void,
  ) {
    this.saved = text;
    this.place = `qkv-unsaved ${location.pathname} ${key}`;
    every.add(this);
  }

  /** What was typed and never confirmed, from a visit that ended badly. */
  unsaved(): string | null {
    try {
      return localStorage.getItem(this.place);
    } catch {
      return null;
    }
  }

  get dirty(): boolean {
    return this.text !== this.saved;
  }

  typed(text: string): void {
    this.text = text;
    this.remember();
    this.tell({ kind: this.dirty ? "typing" : "clean" });
    this.soon();
  }

  /** Goes on from another tab's revision: with this text over it. */
  settle(text: string, revision: number): void {
    this.revision = revision;
    this.text = text;
    this.stopped = false;
    void this.write();
  }

  /** A newer text from the notebook; taken only if nothing here waits to be saved. */
  offer(text: string, revision: number): boolean {
    if (this.dirty || this.busy || this.stopped || revision <= this.revision) return false;
    this.revision = revision;
    this.text = this.saved = text;
    return true;
  }

  flush(): void {
    this.soon.flush();
  }

  close(): void {
    this.flush();
    every.delete(this);
  }

  private async write(): Promise<void> {
    if (this.busy || this.stopped || this.text === this.saved) return;
    this.busy = true;
    const sent = this.text;
    try {
      const { revision } = await this.save(sent, this.revision);
      this.revision = revision;
      this.saved = sent;
      this.remember();
      this.tell(this.dirty ? { kind: "typing" } : { kind: "saved", at: new Date() });
    } catch (error) {
      if (error instanceof Conflict) {
        if (error.text === sent) {
          this.saved = sent;
          this.revision = error.revision;
          this.tell({ kind: "saved", at: new Date() });
        } else {
          // Nothing more is written until a person has chosen.
          this.stopped = true;
          this.tell({ kind: "conflict", theirs: error.text, revision: error.revision });
        }
      } else {
        this.tell({ kind: "trouble", message: (error as Error).message });
        setTimeout(() => void this.write(), 3000);
      }
    } finally {
      this.busy = false;
    }
    if (this.dirty && !this.stopped) this.soon();
  }

  private remember(): void {
    try {
      if (this.dirty) localStorage.setItem(this.place, this.text);
      else localStorage.removeItem(this.place);
    } catch {
      // A full or forbidden store: the notebook itself is still written.
    }
  }
}

for (const event of ["pagehide", "visibilitychange"]) {
  addEventListener(event, () => {
    for (const one of every) one.flush();
  });
}
