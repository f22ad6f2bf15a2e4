// What the page and the lab's worker say to each other.

/** Python, as the page has fetched it once for all workers. */
export interface Start {
  type: "start";
  interpreter: WebAssembly.Module;
  library: ArrayBuffer;
  /** Python files to lay into the worker, by name. */
  files: Record<string, string>;
}

export type Task =
  | { type: "run"; source: string }
  | { type: "grade"; source: string; extra: unknown[]; skip: Record<string, unknown> }
  /** `stopped`: the outcome of the learner's function where the page had to end it; then it is not run. */
  | { type: "try"; source: string; text: string; stopped?: unknown }
  | { type: "rows"; source: string; problems: string };

export interface CaseNews {
  event: "start" | "shrink" | "done";
  id: string;
  number: number;
  of: number;
  title: string;
  record?: any;
}

/** Seconds of the learner's function so far, how many calls that were, and what one takes the definition, just now. */
export interface Pulse {
  event: "pulse";
  yours: number;
  calls: number;
  each: number;
}

export type News =
  | CaseNews
  | Pulse
  /** The input could be read; the learner's file was loaded. */
  | { event: "read" | "loaded" }
  | { event: "row"; number: number; of: number };

export type Reply =
  | { type: "ready" }
  | { type: "started" }
  | { type: "printed"; text: string }
  | { type: "news"; news: News }
  | { type: "done"; result: any }
  /** The interpreter itself ended, or could not be loaded. */
  | { type: "died"; message: string };
