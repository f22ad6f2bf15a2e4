// A text that is saved as it is typed: soon after the last key, at once when the tab is left, and kept in the browser's
// own store until the notebook has confirmed it, so that a server that is away costs nothing.
//
// What is saved says which revision it was typed on. That revision changes only when the notebook confirms a save, when
// a newer text is taken over, or when a person has chosen between two; never by reading, and never by a reload.

import type { Backups } from "./backups.ts";
import { later } from "./dom.ts";
import { Conflict, type Saved } from "./store.ts";

export type Status =
  | { kind: "clean" }
  | { kind: "typing" }
  /** `mended`: something in it cannot be kept and was replaced, as `wellFormed` does. */
  | { kind: "saved"; at: Date; mended: boolean }
  | { kind: "conflict"; theirs: string; revision: number }
  | { kind: "trouble"; message: string };

type Save = (text: string, revision: number) => Promise<Saved>;
type Tell = (status: Status) => void;

/** How many texts that were sent and not confirmed are remembered as this tab's own. */
const SENT = 8;

/** Half of a character pair, which no file can hold, becomes U+FFFD. */
export function wellFormed(text: string): string {
  return text.replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "\ufffd");
}

/** All texts of the page; a text stays the same object while views come and go, so nothing pending depends on a view. */
export class Texts {
  private readonly known = new Map<string, Autosave>();

  constructor(private readonly backups: Backups) {}

  /** The text called `key`, which the notebook has as `text`, of `revision`. */
  of(key: string, text: string, revision: number, save: Save): Autosave {
    const known = this.known.get(key);
    if (known) {
      known.offer(text, revision);
      return known;
    }
    const made = new Autosave(key, text, revision, save, this.backups);
    this.known.set(key, made);
    return made;
  }

  flush(): void {
    for (const one of this.known.values()) one.flush();
  }

  /** Resolves when nothing is on its way any more, or after some time: a server that is away is not waited for. */
  async settled(patience = 2000): Promise<void> {
    this.flush();
    const end = Date.now() + patience;
    while (Date.now() < end && [...this.known.values()].some((one) => one.underWay)) {
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }
}

export class Autosave {
  private saved: string;
  private sent: string[] = [];
  private busy = false;
  private conflict: { theirs: string; revision: number } | undefined;
  private status: Status = { kind: "clean" };
  private told: Tell = () => undefined;
  private retry: ReturnType<typeof setTimeout> | undefined;
  private readonly soon = later(() => void this.write(), 350);

  constructor(
    readonly key: string,
    public text: string,
    private revision: number,
    private readonly save: Save,
    private readonly backups: Backups,
  ) {
    this.saved = text;
    const left = backups.own(key);
    if (!left) return;
    if (wellFormed(left.text) === text) {
      backups.drop(key);
      return;
    }
    this.text = left.text;
    this.sent = left.sent;
    // What it was typed on is there still; or it is this tab's own earlier text; or there is nothing to lose.
    if (left.base === revision || left.sent.includes(text) || text === "") {
      this.remember();
      this.status = { kind: "typing" };
      this.soon();
    } else {
      this.revision = left.base;
      this.conflict = { theirs: text, revision };
      this.status = { kind: "conflict", ...this.conflict };
    }
  }

  get dirty(): boolean {
    return this.text !== this.saved;
  }

  get underWay(): boolean {
    return this.busy || (this.dirty && !this.conflict && this.status.kind !== "trouble");
  }

  /** Who shows the text is told how it stands, now and from now on; the last one who asked. */
  watch(tell: Tell): void {
    this.told = tell;
    if (this.status.kind !== "clean" && this.status.kind !== "saved") tell(this.status);
  }

  typed(text: string): void {
    this.text = text;
    this.remember();
    if (this.conflict) return;
    this.tell(this.dirty ? { kind: "typing" } : { kind: "clean" });
    this.soon();
  }

  /** What a person has chosen where two tabs disagree; it is saved over the other's revision. */
  settle(text: string): void {
    if (!this.conflict) return;
    this.revision = this.conflict.revision;
    this.saved = this.conflict.theirs;
    this.conflict = undefined;
    this.sent = [];
    this.text = text;
    this.remember();
    if (this.dirty) {
      this.tell({ kind: "typing" });
      void this.write();
    } else this.tell({ kind: "saved", at: new Date(), mended: false });
  }

  /** A newer text from the notebook; taken only if nothing here waits to be saved. */
  offer(text: string, revision: number): boolean {
    if (this.dirty || this.busy || this.conflict || revision <= this.revision) return false;
    this.revision = revision;
    this.text = this.saved = text;
    return true;
  }

  flush(): void {
    this.soon.flush();
  }

  private async write(): Promise<void> {
    clearTimeout(this.retry);
    if (this.busy || this.conflict || !this.dirty) return;
    this.busy = true;
    const typed = this.text;
    const sent = wellFormed(typed);
    this.sent = [...this.sent.filter((text) => text !== sent), sent].slice(-SENT);
    this.remember();
    let again = false;
    try {
      const { revision } = await this.save(sent, this.revision);
      this.confirmed(typed, revision);
    } catch (error) {
      if (!(error instanceof Conflict)) {
        this.tell({ kind: "trouble", message: (error as Error).message });
        this.retry = setTimeout(() => void this.write(), 3000);
      } else if (error.text === sent) this.confirmed(typed, error.revision);
      else if (this.sent.includes(error.text)) {
        // An own earlier text, whose confirmation was lost on the way.
        this.revision = error.revision;
        this.saved = error.text;
        again = true;
      } else {
        // Nothing more is written until a person has chosen.
        this.conflict = { theirs: error.text, revision: error.revision };
        this.tell({ kind: "conflict", ...this.conflict });
      }
    } finally {
      this.busy = false;
    }
    if (again) await this.write();
    else if (this.dirty && !this.conflict && this.status.kind !== "trouble") this.soon();
  }

  private confirmed(typed: string, revision: number): void {
    this.revision = revision;
    this.saved = typed;
    this.sent = [];
    this.remember();
    this.tell(this.dirty ? { kind: "typing" } : { kind: "saved", at: new Date(), mended: wellFormed(typed) !== typed });
  }

  private remember(): void {
    if (this.dirty || this.conflict) this.backups.keep(this.key, this.text, this.revision, this.sent);
    else this.backups.drop(this.key);
  }

  private tell(status: Status): void {
    this.status = status;
    this.told(status);
  }
}
