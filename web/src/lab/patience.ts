// How long a task may take before it is ended, and whose fault that is.
//
// A program that gives no sign of life is ended after two seconds of silence. One that does is ended when it has taken
// as long as anyone would wait; but a machine that is slow, or busy with other things, makes honest work long as well,
// so the program is blamed only if it took far longer than the definition takes, call for call, at that very time.

import type { News, Pulse, Task } from "./protocol.ts";

/** Milliseconds without a sign of life; and of a whole task. The promise is a message within 5 s. */
export const SILENCE = 2000;
export const WHOLE = 4200;

/** How many times slower than the definition a function is slow. Honest ones are up to three times as slow. */
const SLOW = 10;

/** No grading takes as long as this many calls of the definition: honest ones take up to a few thousand. */
const CALLS = 15_000;

/** The longest that is waited for a machine that is busy. */
const LONGEST = 30_000;

export type Verdict = "hang" | "slow" | "busy" | null;

/** Time as the page itself lives it: while the machine stands still, sleeps, or gives the page nothing, none passes. */
export class Lived {
  private total = 0;

  constructor(private last: number) {}

  /** The milliseconds that have counted, at `now`; to be asked ten times a second. A hidden page is asked once. */
  at(now: number, hidden = false): number {
    this.total += Math.min(Math.max(0, now - this.last), hidden ? 1500 : 300);
    this.last = now;
    return this.total;
  }
}

export class Patience {
  private began = 0;
  private heard = 0;
  private pulse: Pulse | undefined;

  constructor(private readonly kind: Task["type"]) {}

  /** The worker has begun. */
  start(at: number): void {
    this.began = this.heard = at;
  }

  hear(at: number, news: News): void {
    this.heard = at;
    if (news.event === "pulse") this.pulse = news;
  }

  /** Whether it already takes longer than it does on a machine that is idle. */
  get strained(): boolean {
    return this.heard - this.began > WHOLE;
  }

  ask(at: number): Verdict {
    const silent = at - this.heard;
    const whole = at - this.began;
    const { yours, calls, each } = this.pulse ?? { yours: 0, calls: 0, each: 0 };
    if (this.kind === "run") return whole > WHOLE ? "hang" : null;
    // Single calls of any size: each has to end, and an input that takes the definition long may take others long.
    if (this.kind !== "grade") return silent > Math.min(LONGEST, Math.max(WHOLE, 1000 * SLOW * each)) ? "hang" : null;
    if (silent > SILENCE) return "hang";
    if (whole <= WHOLE) return null;
    if (yours > SLOW * calls * each) return "slow";
    return whole > this.wholeLimit ? "busy" : null;
  }

  private get wholeLimit(): number {
    return Math.min(LONGEST, Math.max(WHOLE, 1000 * CALLS * (this.pulse?.each ?? 0)));
  }
}
