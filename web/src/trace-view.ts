// A trace opened step by step: the step in words, its line of code among the others, and the table as far as it has got.

import { h, put } from "./dom.ts";
import { given, number, typeset, vector } from "./numbers.ts";
import { traceSteps, type Example, type Step } from "./trace.ts";

export function traceView(example: Example): HTMLElement {
  const steps = traceSteps(example);
  let at = 0;
  const status = h("p", { class: "step-name", role: "status" });
  const formula = h("p", { class: "step-formula" });
  const words = h("p", { class: "step-words" });
  const code = h("ol", { class: "step-code" });
  const table = h("div", { class: "scrolls", tabindex: "0", role: "group", "aria-label": "The numbers so far, table" });
  const back = h("button", { type: "button", class: "quiet", onclick: () => go(at - 1) }, "← Back");
  const next = h("button", { type: "button", class: "solid", onclick: () => go(at + 1) }, "Next step →");
  const lines = steps.map((step, i) =>
    h(
      "li",
      {},
      h("button", { type: "button", class: "code-line", onclick: () => go(i) }, h("code", {}, step.code)),
    ),
  );
  code.append(...lines);

  const element = h(
    "div",
    { class: "trace-view", role: "group", "aria-label": "Trace, step by step", onkeydown: keys },
    h("div", { class: "step-head" }, status, h("div", { class: "buttons" }, back, next)),
    h("div", { class: "step-body" }, h("div", { class: "step-text" }, formula, words), table),
    h("p", { class: "panel-title" }, "The code, one line per step"),
    code,
  );

  function keys(event: KeyboardEvent): void {
    if (event.target !== back && event.target !== next && event.target !== table) return;
    if (event.key === "ArrowRight" && event.target !== table) go(at + 1);
    else if (event.key === "ArrowLeft" && event.target !== table) go(at - 1);
    else if (event.key === "Home") go(0);
    else if (event.key === "End") go(steps.length - 1);
    else return;
    event.preventDefault();
  }

  function go(to: number): void {
    at = Math.max(0, Math.min(steps.length - 1, to));
    const step = steps[at];
    status.textContent = `Step ${at + 1} of ${steps.length}: ${step.name}`;
    formula.textContent = step.formula;
    words.textContent = typeset(step.explanation);
    for (const [i, line] of lines.entries()) {
      line.classList.toggle("now", i === at);
      line.classList.toggle("to-come", i > at);
      if (i === at) line.firstElementChild!.setAttribute("aria-current", "step");
      else line.firstElementChild!.removeAttribute("aria-current");
    }
    // The focus must not fall off a button that is switched off under it.
    if (at === 0 && document.activeElement === back) next.focus();
    if (at === steps.length - 1 && document.activeElement === next) back.focus();
    back.disabled = at === 0;
    next.disabled = at === steps.length - 1;
    put(table, stepTable(example, steps, at));
  }
  go(0);
  return element;
}

/** One row per key, one column per step; numbers that belong to no key stand in the last row. */
function stepTable(example: Example, steps: Step[], at: number): HTMLElement {
  const short: Record<string, string> = {
    "dot products": "q · k",
    "scaled scores": `÷ √${example.query.length}`,
    "masked scores": "mask",
    maximum: "max",
    "shifted scores": "− max",
    exponentials: "exp",
    sum: "sum",
    weights: "weight",
    contributions: "weight · v",
    context: "context",
  };
  const done = steps.slice(0, at + 1);
  const single = (step: Step) => step.name === "context" || typeof step.numbers === "number";
  const columns = done.filter((step) => !single(step));
  const now = (step: Step) => (step === steps[at] ? "now" : "");
  const cell = (step: Step, j: number) => {
    const entry = (step.numbers as (number | null | number[])[])[j];
    const text = entry === null ? "masked" : Array.isArray(entry) ? vector(entry) : number(entry);
    return h("td", { class: now(step) }, typeset(text));
  };
  return h(
    "table",
    {},
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        h("th", { scope: "col" }, "key"),
        h("th", { scope: "col" }, "k"),
        h("th", { scope: "col" }, "v"),
        ...columns.map((step) => h("th", { scope: "col", class: now(step) }, short[step.name])),
      ),
    ),
    h(
      "tbody",
      {},
      ...example.keys.map((key, j) =>
        h(
          "tr",
          { class: example.mask[j] ? "" : "masked" },
          h("th", { scope: "row" }, String(j)),
          h("td", {}, typeset(vector(key, given))),
          h("td", {}, typeset(vector(example.values[j], given))),
          ...columns.map((step) => cell(step, j)),
        ),
      ),
      ...done.filter(single).map((step) =>
        h(
          "tr",
          { class: `single ${now(step)}` },
          h("th", { scope: "row", colspan: 3 }, short[step.name]),
          h(
            "td",
            { colspan: Math.max(1, columns.length) },
            typeset(typeof step.numbers === "number" ? number(step.numbers) : vector(step.numbers as number[])),
          ),
        ),
      ),
    ),
  );
}

/** The same in a dialog over the page, for the numbers of a figure. */
export function openTrace(example: Example): void {
  const before = document.activeElement as HTMLElement | null;
  const dialog = h("dialog", { class: "trace-dialog", "aria-label": "Trace" });
  const close = h("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Close");
  dialog.append(
    h(
      "div",
      { class: "dialog-head" },
      h("h2", {}, `Trace of the query ${typeset(vector(example.query, given))}`),
      close,
    ),
    traceView(example),
  );
  dialog.addEventListener("close", () => {
    dialog.remove();
    before?.focus();
  });
  document.body.append(dialog);
  dialog.showModal();
}
