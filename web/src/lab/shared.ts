// One Python for the whole page, and the learner's own cases as the grader takes them.

import type { App } from "../app.ts";
import type { Failure } from "../types.ts";
import { Python } from "./python.ts";

let python: Python | undefined;

export function pythonOf(app: App): Python {
  python ??= new Python(app.config.python ?? { "plain.py": "py/plain.py", "grader.py": "py/grader.py" });
  return python;
}

/** Cases that could be read; they are graded with the lab's own. */
export function ownCases(app: App, lesson: string): unknown[] {
  return app.notebook.cases
    .filter((failure) => failure.lesson === lesson && failure.verdict?.input && !isDeeper(failure.verdict.input, DEPTH))
    .map((failure: Failure) => ({
      ...failure.verdict.input,
      id: `own-${failure.id}`,
      title: `Your own case${failure.note ? `: ${failure.note.slice(0, 80)}` : ""}`,
    }));
}

/** A case from an imported file may be nested so deeply that Python ends on it; none that was tried here is. */
const DEPTH = 50;

function isDeeper(value: unknown, depth: number): boolean {
  if (typeof value !== "object" || value === null) return false;
  return depth === 0 || Object.values(value).some((part) => isDeeper(part, depth - 1));
}
