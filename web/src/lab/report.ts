// What became of an attempt, told to the one who made it: the smallest input first.

import { h } from "../dom.ts";
import { html } from "../reader.ts";
import { openTrace } from "../trace-view.ts";
import type { Lab } from "../types.ts";
import type { Editor } from "./editor.ts";
import type { Ended } from "./python.ts";

export const NEXT = "Your text is untouched, and the next run starts in a fresh Python.";

/** What stopped a task, in one or two sentences. */
export function stopSentence(ended: Extract<Ended, { kind: "stopped" }>, grading: boolean): string {
  const where = grading && ended.news ? ` in case ${ended.news.number} of ${ended.news.of}, “${ended.news.title}”` : "";
  const after = `${ended.seconds.toFixed(1)} s`;
  if (ended.why === "cancelled") return `Stopped by you after ${after}${where}.`;
  if (ended.why === "died") return `Python itself ended${where}: it ran out of room or was told to stop. ${NEXT}`;
  if (ended.why === "busy") {
    return (
      `Stopped after ${after}${where}: this machine is too busy, or too slow, to grade in time. That says nothing about ` +
      "your function, and nothing was written down; grade it again when other work has ended."
    );
  }
  if (ended.why === "slow") return `Stopped after ${after}${where}: your function takes many times as long as the definition. ${NEXT}`;
  return `Stopped after ${after}${where}: your code gave no answer. Look for a loop that never ends, or a sleep. ${NEXT}`;
}

export function reportView(report: any, lab: Lab, editor: Editor | null): HTMLElement {
  const { passed, cases, of } = counts(report);
  const first = report.cases.find((one: any) => one.status === "failed");
  const head = h(
    "p",
    { class: report.passed ? "banner good" : "banner bad" },
    h("b", {}, report.passed ? "Passed." : "Not passed yet."),
    ` ${passed} of ${of} cases.`,
    report.passed ? " Your function can now read a page through a trained head, below." : "",
  );
  return h("div", { class: "report" }, head, first ? failureView(first, lab, editor) : null, caseList(cases));
}

function counts(report: any): { passed: number; cases: any[]; of: number } {
  return { passed: report.counts.passed, cases: report.cases, of: report.counts.cases };
}

/** A failed case: what was given, both answers, the clause, the likely cause, hints one by one. */
export function failureView(one: any, lab: Lab | null, editor: Editor | null): HTMLElement {
  const failure = one.failure;
  const line = failure.yours?.line;
  return h(
    "div",
    { class: "failure" },
    h("h3", {}, one.title),
    failure.code
      ? h("div", {}, h("p", { class: "panel-title" }, failure.smallest === false ? "The input" : "The smallest input that shows it"), code(failure.code), traceButton(failure.input))
      : null,
    h("p", { class: "failure-says" }, failure.says),
    answers(failure.yours, failure.right),
    line && editor
      ? h("p", {}, h("button", { type: "button", class: "quiet", onclick: () => editor.line(line) }, `Go to line ${line}`))
      : null,
    clause(failure.clause),
    failure.cause
      ? h(
          "p",
          { class: "cause" },
          h("b", {}, "Likely cause: "),
          failure.cause.title,
          failure.cause.more ? ` (${failure.cause.more})` : "",
          ".",
        )
      : null,
    hints(failure.hints ?? [], lab?.hints ?? []),
  );
}

export function answers(yours: any, right: any): HTMLElement | null {
  if (!yours && !right) return null;
  const said = yours?.message ? `${yours.text}: ${yours.message}` : yours?.text;
  return h(
    "dl",
    { class: "answers" },
    yours ? h("dt", {}, "Yours") : null,
    yours ? h("dd", {}, code(said)) : null,
    right ? h("dt", {}, "Right") : null,
    right ? h("dd", {}, code(right.text)) : null,
  );
}

/** Nothing where no clause is meant: a file that does not load breaks none. */
export function clause(one: { number: string; words: string } | null): HTMLElement | null {
  return one && h("p", { class: "clause" }, h("b", {}, `Clause ${one.number}: `), one.words);
}

function code(text: string): HTMLElement {
  return h("pre", { tabindex: "0" }, h("code", {}, text));
}

/** The right way through the input, step by step, where there is one. */
function traceButton(input: any): HTMLElement | null {
  const vector = (list: unknown) => Array.isArray(list) && list.length > 0 && list.every((x) => typeof x === "number");
  const { query, keys, values, allowed } = input ?? {};
  const good =
    vector(query) &&
    Array.isArray(keys) &&
    keys.every((key: unknown[]) => vector(key) && key.length === query.length) &&
    Array.isArray(values) &&
    values.length === keys.length &&
    values.every((value: unknown[]) => vector(value) && value.length === values[0].length) &&
    Array.isArray(allowed) &&
    allowed.length === keys.length &&
    allowed.every((may: unknown) => typeof may === "boolean") &&
    allowed.includes(true);
  if (!good) return null;
  const open = () => openTrace({ query, keys, values, mask: allowed });
  return h("button", { type: "button", class: "quiet", onclick: open }, "Trace this input");
}

function hints(own: string[], general: string[]): HTMLElement | null {
  const all: HTMLElement[] = [...own.map((text) => h("li", {}, text)), ...general.map((text) => html("li", "", text))];
  if (!all.length) return null;
  const list = h("ol", { class: "hints" });
  let shown = 0;
  const button = h("button", { type: "button", class: "quiet" });
  const tell = () => {
    button.textContent = shown === 0 ? "Show a hint" : `Next hint (${shown} of ${all.length} shown)`;
    button.hidden = shown === all.length;
  };
  button.addEventListener("click", () => {
    const hint = all[shown++];
    hint.tabIndex = -1;
    list.append(hint);
    hint.focus();
    tell();
  });
  tell();
  return h("div", { class: "hints-place" }, list, button);
}

function caseList(cases: any[]): HTMLElement {
  const marks: Record<string, string> = { passed: "✓", failed: "✗", skipped: "–", "not run": "–" };
  return h(
    "details",
    { class: "case-list" },
    h("summary", {}, "All cases"),
    h(
      "ul",
      {},
      ...cases.map((one) =>
        h(
          "li",
          { class: one.status.replace(" ", "-") },
          h("span", { class: "case-mark", "aria-hidden": "true" }, marks[one.status] ?? "–"),
          h("span", {}, one.title, h("span", { class: "case-status" }, ` ${one.status}${one.clause ? `, clause ${one.clause.number}` : ""}`)),
        ),
      ),
    ),
  );
}

