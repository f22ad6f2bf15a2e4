// A failure to test: an input that the learner thinks breaks attend, tried on his function and on the definition.

import type { App } from "../app.ts";
import { day } from "../app.ts";
import { h, put, unique } from "../dom.ts";
import type { Failure, Lesson } from "../types.ts";
import { answers, clause, failureView, stopSentence } from "./report.ts";
import { pythonOf } from "./shared.ts";

type Form = Failure["form"];

const FIELDS = [
  ["query", "1 0", "one row of numbers"],
  ["keys", "1 0; 0 1", "one row per key, rows parted by ;"],
  ["values", "10 0; 0 20", "one row per value"],
  ["allowed", "yes yes", "yes or no per key"],
] as const;

const EXAMPLES: Record<Exclude<Form, "numbers">, string> = {
  json: '{"query": [1, 0], "keys": [[1, 0], [0, 1]], "values": [[10, 0], [0, 20]], "allowed": [true, false]}',
  python: "attend([1, 0], [[1, 0], [0, 1]], [[10, 0], [0, nan]], [True, False])",
};

export function failureForm(app: App, lesson: Lesson, code?: () => string, changed: () => void = () => undefined): HTMLElement {
  const result = h("div", { class: "failure-result", role: "status" });
  const list = h("div", {});
  const formId = unique("form");
  const noteId = unique("why");
  const textId = unique("input");
  const kind = h(
    "select",
    { id: formId, onchange: () => show() },
    h("option", { value: "numbers" }, "Numbers"),
    h("option", { value: "json" }, "JSON"),
    h("option", { value: "python" }, "Python"),
  );
  const note = h("input", { type: "text", id: noteId, placeholder: "What you expect to go wrong" });
  const area = h("textarea", { id: textId, rows: 4, spellcheck: "false", class: "code-area" });
  const numbers = FIELDS.map(([name, start, means]) => {
    const id = unique(name);
    const input = h("input", { type: "text", id, value: start, spellcheck: "false", class: "code-area" });
    return { name, input, element: h("div", { class: "number-field" }, h("label", { for: id }, name, h("span", { class: "hint" }, ` ${means}`)), input) };
  });
  const fields = h("div", {});
  const test = h("button", { type: "button", class: "solid" }, "Test it");
  const form = () => kind.value as Form;

  function show(): void {
    if (form() === "numbers") put(fields, ...numbers.map((field) => field.element));
    else {
      area.value = EXAMPLES[form() as "json" | "python"];
      put(fields, h("label", { for: textId }, form() === "json" ? "The input as JSON" : "The call in Python"), area);
    }
  }

  const source = () => {
    if (code) return code();
    const draft = app.notebook.drafts.find((one) => one.lesson === lesson.id)?.code;
    return draft || lesson.lab!.starter;
  };

  test.addEventListener("click", async () => {
    test.disabled = true;
    await app.trying(async () => {
      await app.refresh();
      const text = form() === "numbers" ? numbers.map(({ name, input }) => `${name}: ${input.value}`).join("\n") : area.value;
      const call = form() === "numbers" ? asCall(numbers.map(({ input }) => input.value)) : text;
      put(result, h("p", { class: "state" }, "Python is being loaded…"));
      const ended = await pythonOf(app).task(
        { type: "try", source: source(), text: call },
        { started: () => put(result, h("p", { class: "state" }, "Trying it on your function and on the definition…")) },
      );
      let verdict: any;
      if (ended.kind === "stopped") verdict = { status: "failed", sentence: stopSentence(ended, false), failure: null };
      else if (ended.result.unreadable) {
        put(result, h("p", { class: "trouble" }, `This is no input yet: ${ended.result.unreadable}.`));
        return;
      } else verdict = ended.result;
      verdict.sentence ??= sentenceOf(verdict);
      const kept = { lesson: lesson.id, form: form(), text, note: note.value, verdict };
      await app.store.addCase(kept);
      await app.refresh();
      put(result, verdictView(verdict));
      showList();
      changed();
    });
    test.disabled = false;
  });

  function showList(): void {
    const kept = app.notebook.cases.filter((failure) => failure.lesson === lesson.id);
    put(
      list,
      kept.length ? h("h3", {}, "Kept in your notebook, graded with your lab") : null,
      h("ul", { class: "kept-cases" }, ...kept.map((failure) => keptCase(app, failure, () => (showList(), changed())))),
    );
  }
  show();
  showList();
  return h(
    "section",
    { class: "lab-part failure-form", "aria-label": "A failure you want to test" },
    h("h2", {}, "A failure you want to test"),
    h(
      "p",
      {},
      "Write down an input that you think breaks attend. It is run on your own function and on the definition. nan, inf " +
        "and -inf can be written, too.",
    ),
    h("div", { class: "field" }, h("label", { for: formId }, "Written as"), kind),
    fields,
    h("div", { class: "number-field" }, h("label", { for: noteId }, "Why"), note),
    h("div", { class: "buttons" }, test),
    result,
    list,
  );
}

/** One kept case, with what came out; also shown in the notebook. */
export function keptCase(app: App, failure: Failure, changed: () => void): HTMLElement {
  const remove = h("button", { type: "button", class: "quiet", "aria-label": `Remove the case ${failure.note || failure.text}` }, "Remove");
  remove.addEventListener("click", () =>
    app.trying(async () => {
      await app.store.deleteCase(failure.id);
      await app.refresh();
      app.say("Case removed.");
      changed();
    }),
  );
  return h(
    "li",
    {},
    h("pre", { tabindex: "0" }, h("code", {}, failure.text)),
    failure.note ? h("p", {}, failure.note) : null,
    h("p", {}, failure.verdict?.sentence ?? ""),
    h("div", { class: "buttons" }, h("span", { class: "hint" }, day(failure.time)), remove),
  );
}

function verdictView(verdict: any): HTMLElement {
  const right = verdict.status === "passed";
  return h(
    "div",
    { class: "verdict-view" },
    h("p", { class: right ? "banner good" : "banner bad" }, verdict.sentence),
    verdict.failure
      ? failureView(verdict, null, null)
      : verdict.yours
        ? h("div", {}, answers(verdict.yours, verdict.right), clause(verdict.clause))
        : null,
  );
}

function sentenceOf(verdict: any): string {
  const number = verdict.failure?.clause.number ?? verdict.clause.number;
  return verdict.status === "passed"
    ? `Your function holds: it does what clause ${number} asks for.`
    : `Your function breaks clause ${number}. ${verdict.failure?.says ?? ""}`.trim();
}

/** The small form as a call in Python; what is no number is left for Python to refuse. */
function asCall([query, keys, values, allowed]: string[]): string {
  const vector = (text: string) => `[${text.trim().split(/[\s,]+/).filter(Boolean).join(", ")}]`;
  const vectors = (text: string) => (text.trim() ? `[${text.split(";").map(vector).join(", ")}]` : "[]");
  const words: Record<string, string> = { yes: "True", true: "True", no: "False", false: "False" };
  const mask = vector(allowed.replace(/\w+/g, (word) => words[word.toLowerCase()] ?? word));
  return `attend(${vector(query)}, ${vectors(keys)}, ${vectors(values)}, ${mask})`;
}
