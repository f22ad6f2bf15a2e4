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
    .filter((failure) => failure.lesson === lesson && failure.verdict?.input)
    .map((failure: Failure) => ({
      ...failure.verdict.input,
      id: `own-${failure.id}`,
      title: `Your own case${failure.note ? `: ${failure.note.slice(0, 80)}` : ""}`,
    }));
}
