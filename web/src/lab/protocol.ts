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
  | { type: "try"; source: string; text: string }
  | { type: "rows"; source: string; problems: string };

export interface CaseNews {
  event: "start" | "shrink" | "done";
  id: string;
  number: number;
  of: number;
  title: string;
  record?: any;
}

export type Reply =
  | { type: "ready" }
  | { type: "started" }
  | { type: "printed"; text: string }
  | { type: "case"; news: CaseNews }
  | { type: "done"; result: any }
  /** The interpreter itself ended, or could not be loaded. */
  | { type: "died"; message: string };
