// A failure to test: an input that the learner thinks breaks attend, tried on his function and on the definition.

import type { App } from "../app.ts";
import { day } from "../app.ts";
import { wellFormed } from "../autosave.ts";
import { h, put, unique } from "../dom.ts";
import type { Failure, Lesson } from "../types.ts";
import { elsewhere } from "./elsewhere.ts";
import { answers, clause, failureView, NEXT, stopSentence } from "./report.ts";
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

/** What stands in the form: a text of its own for each way to write an input, kept as long as the tab. */
interface Written {
  form: Form;
  numbers: string[];
  json: string;
  python: string;
  note: string;
}

export function failureForm(app: App, lesson: Lesson, code?: () => string, changed: () => void = () => undefined): HTMLElement {
  const result = h("div", { class: "failure-result", role: "status" });
  // Beside the status, which is read out when it changes, and not in it: a table is read by who wants it.
  const others = h("div", { class: "others" });
  const list = h("div", {});
  const formId = unique("form");
  const noteId = unique("why");
  const textId = unique("input");
  const place = `qkv-failure ${app.notebook.id} ${lesson.id}`;
  const written = remembered(place);
  const remember = () => {
    try {
      sessionStorage.setItem(place, JSON.stringify(written));
    } catch {
      // Without a store it is kept as long as the page.
    }
  };
  const kind = h(
    "select",
    { id: formId, onchange: () => ((written.form = kind.value as Form), remember(), show()) },
    ...(["numbers", "json", "python"] as const).map((form) =>
      h("option", { value: form, selected: form === written.form }, { numbers: "Numbers", json: "JSON", python: "Python" }[form]),
    ),
  );
  const note = h("input", {
    type: "text",
    id: noteId,
    placeholder: "What you expect to go wrong",
    value: written.note,
    oninput: () => ((written.note = note.value), remember()),
  });
  const area = h("textarea", {
    id: textId,
    rows: 4,
    spellcheck: "false",
    class: "code-area",
    oninput: () => ((written[written.form as "json" | "python"] = area.value), remember()),
  });
  const numbers = FIELDS.map(([name, , means], i) => {
    const id = unique(name);
    const input = h("input", {
      type: "text",
      id,
      value: written.numbers[i],
      spellcheck: "false",
      class: "code-area",
      oninput: () => ((written.numbers[i] = input.value), remember()),
    });
    return h("div", { class: "number-field" }, h("label", { for: id }, name, h("span", { class: "hint" }, ` ${means}`)), input);
  });
  const fields = h("div", {});
  const test = h("button", { type: "button", class: "solid" }, "Test it");

  function show(): void {
    if (written.form === "numbers") return put(fields, ...numbers);
    area.value = written[written.form];
    put(fields, h("label", { for: textId }, written.form === "json" ? "The input as JSON" : "The call in Python"), area);
  }

  const source = () => (code ? code() : app.draft(lesson.id, lesson.lab!.starter).text);
  const asWritten = () =>
    written.form === "numbers" ? FIELDS.map(([name], i) => `${name}: ${written.numbers[i]}`).join("\n") : written[written.form];

  test.addEventListener("click", async () => {
    test.disabled = true;
    put(others);
    await app.trying(async () => {
      const { form, note } = written;
      const text = asWritten();
      const tried = await tryIt(app, source(), text, (words) =>
        put(result, h("p", { class: "state" }, words)),
      );
      if (typeof tried === "string") return put(result, h("p", { class: "trouble" }, tried));
      put(result, verdictView(tried));
      put(others, elsewhere(tried.alike));
      const mended = wellFormed(text) !== text || wellFormed(note) !== note;
      if (mended) result.append(h("p", { class: "trouble" }, "Half of a character in it, which no file can hold, is kept as \ufffd."));
      await keep({ lesson: lesson.id, form, text: wellFormed(text), note: wellFormed(note), verdict: tried });
      showList();
      changed();
    });
    test.disabled = false;
  });

  /** One case for one input, with what came out last; a case with another note is another case. */
  async function keep(failure: Omit<Failure, "id" | "time">): Promise<void> {
    const earlier = app.notebook.cases.filter(
      (one) => one.lesson === failure.lesson && one.form === failure.form && one.text === failure.text && one.note === failure.note,
    );
    await app.store.addCase(failure);
    // Only what is written down again is taken away; one that another tab has removed is gone already.
    for (const { id } of earlier) await app.store.deleteCase(id).catch(() => undefined);
    await app.refresh();
  }

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
      "Write down an input that you think breaks attend. It is run on your own function and on the definition, and you see " +
        "what well-known libraries do with such an input. nan, inf and -inf can be written, too.",
    ),
    h("div", { class: "field" }, h("label", { for: formId }, "Written as"), kind),
    fields,
    h("div", { class: "number-field" }, h("label", { for: noteId }, "Why"), note),
    h("div", { class: "buttons" }, test),
    result,
    others,
    list,
  );
}

function remembered(place: string): Written {
  const first: Written = { form: "numbers", numbers: FIELDS.map(([, start]) => start), ...EXAMPLES, note: "" };
  try {
    return { ...first, ...JSON.parse(sessionStorage.getItem(place) ?? "{}") };
  } catch {
    return first;
  }
}

/** The verdict on one input, or a sentence that says why there is none, and then nothing is to be kept. */
async function tryIt(app: App, source: string, text: string, tell: (words: string) => void): Promise<any> {
  const python = pythonOf(app);
  const seen = new Set<string>();
  tell("Python is being loaded…");
  const ended = await python.task(
    { type: "try", source, text },
    { started: () => tell("Trying it on your function and on the definition…"), news: ({ event }) => seen.add(event) },
  );
  if (ended.kind === "done") return judged(ended.result);
  if (ended.why === "cancelled") return stopSentence(ended, false);
  if (!seen.has("read")) return "This is no input yet: it is too long, or nested too deeply, to be read; find a smaller one that breaks too.";
  if (!seen.has("loaded")) return `Nothing was tried, because your own text did not get to its end. ${stopSentence(ended, false)}`;
  // What the definition says of the input, and which clause it is about, though the learner's function said nothing.
  const { why, seconds } = ended;
  const stopped = why === "died" ? { kind: "died", message: "it ran out of room or was told to stop" } : { kind: "hang", seconds: Number(seconds.toFixed(1)) };
  const again = await python.task({ type: "try", source: "", text, stopped }, { trusted: true });
  if (again.kind !== "done") return stopSentence(ended, false);
  const verdict = judged(again.result);
  if (typeof verdict !== "string") verdict.sentence = `${verdict.sentence} ${NEXT}`;
  return verdict;
}

function judged(result: any): any {
  if (result.unreadable) return `This is no input yet: ${result.unreadable}.`;
  if (result.unloaded) {
    const { type, line, message } = result.unloaded;
    return `Nothing was tried, because your own text does not load: ${type}${line ? ` in line ${line}` : ""}: ${message}`;
  }
  return { ...result, sentence: result.sentence ?? sentenceOf(result) };
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
