// The lab: write attend, run it, have it graded, and see why it fails.

import type { App, View } from "../app.ts";
import { day, json } from "../app.ts";
import type { Status } from "../autosave.ts";
import { conflictChoice, offerLeftovers } from "../conflict.ts";
import { download, h, put } from "../dom.ts";
import { labFact } from "../facts.ts";
import { stateWords } from "../note.ts";
import { isReport } from "../notebook-document.ts";
import type { Lesson } from "../types.ts";
import { editor as makeEditor } from "./editor.ts";
import { failureForm } from "./failure.ts";
import type { CaseNews } from "./protocol.ts";
import type { Ended } from "./python.ts";
import { realHead } from "./real-head.ts";
import { reportView, stopSentence } from "./report.ts";
import { ownCases, pythonOf } from "./shared.ts";

export function labView(app: App, lesson: Lesson): View {
  const lab = lesson.lab;
  if (!lab) return { title: "Lab", element: h("div", { class: "page" }, h("h1", { tabindex: "-1" }, "This lesson has no lab")) };
  const python = pythonOf(app);
  const autosave = app.draft(lesson.id, lab.starter);
  /** The last report, and the text it is about. */
  let graded: { code: string; report: any } | undefined;
  let solutionShown = app.notebook.attempts.some((attempt) => attempt.lesson === lesson.id && attempt.solution_shown);

  // What the learner sees of the work ---------------------------------------------------------------------------------

  const saved = h("p", { class: "state", role: "status" });
  const choice = h("div", {});
  const left = h("div", {});
  const leaveHint = h("p", { class: "hint editor-hint" });
  const meter = h("progress", { max: 1, value: 0, "aria-label": "Loading Python" });
  const state = h("p", { class: "state work-state", role: "status" });
  const output = h("div", { class: "output-place" });
  const result = h("div", { class: "result" });
  const unkept = h("div", { class: "unkept" });
  const facts = h("div", { class: "facts" });
  const afterwards = h("div", {});
  meter.hidden = true;

  const editor = makeEditor(autosave.text, "Your attend, Python code", "Escape, then Tab, leaves the editor", {
    changed: (text) => autosave.typed(text),
    focused: () => void prepare(),
    run: () => void run(),
    grade: () => void grade(),
    leaving: (on) => {
      leaveHint.textContent = on
        ? "Tab now leaves the editor."
        : "Tab indents. Esc, then Tab, leaves the editor. Ctrl+Enter grades, Shift+Enter runs.";
    },
  });
  leaveHint.textContent = "Tab indents. Esc, then Tab, leaves the editor. Ctrl+Enter grades, Shift+Enter runs.";
  const sides = { mine: editor.text, between: "# --- the other tab's text ---\n" };
  /** Takes a chosen text over; the editor tells of a change by itself. */
  const take = (text: string) => {
    if (text !== editor.text()) editor.set(text);
  };
  function showSaved(status: Status): void {
    stateWords(saved, status);
    if (status.kind !== "conflict") return put(choice);
    const settle = (text: string) => {
      take(text);
      autosave.settle(text);
    };
    put(choice, conflictChoice(status.theirs, { ...sides, take: settle }));
  }
  autosave.watch(showSaved);
  /** As `take`, for a text that comes in the place of another: that one is kept first, unless it is part of the new one. */
  const swap = (text: string): void | false => {
    const here = editor.text();
    const worth = here.trim() && here !== lab.starter && !text.includes(here);
    if (worth && !app.keepReplaced(autosave.key, here)) {
      app.say("Your browser has no room to keep your text, so nothing was replaced. Download it, then delete it by hand.", true);
      return false;
    }
    take(text);
  };
  const offer = () => offerLeftovers(app, autosave.key, left, { ...sides, take: swap });
  void offer();

  // Python --------------------------------------------------------------------------------------------------------------

  const runButton = h("button", { type: "button", class: "quiet", onclick: () => run() }, "Run");
  const gradeButton = h("button", { type: "button", class: "solid", onclick: () => grade() }, "Grade");
  const stopButton = h("button", { type: "button", class: "quiet", onclick: () => python.cancel(), hidden: true }, "Stop");

  const loading = (share: number) => {
    meter.hidden = share >= 1;
    meter.value = share;
    if (share < 1) state.textContent = `Loading Python, ${Math.round(share * 100)} %`;
    else if (state.textContent?.startsWith("Loading")) state.textContent = "Python is ready.";
  };

  function prepare(): Promise<void> {
    return python.prepare(loading).catch((error: Error) => {
      meter.hidden = true;
      state.textContent = `Python could not be loaded: ${error.message}`;
    });
  }

  async function working(action: () => Promise<void>): Promise<void> {
    if (stopButton.hidden === false) return;
    const focused = document.activeElement;
    state.textContent = "Python is being started…";
    runButton.disabled = gradeButton.disabled = true;
    stopButton.hidden = false;
    if (focused === runButton || focused === gradeButton) stopButton.focus();
    try {
      await action();
    } catch (error) {
      state.textContent = (error as Error).message;
    }
    const wasOnStop = document.activeElement === stopButton;
    runButton.disabled = gradeButton.disabled = false;
    stopButton.hidden = true;
    if (wasOnStop) (focused as HTMLElement | null)?.focus();
  }

  const run = () =>
    working(async () => {
      let printed = "";
      const screen = h("pre", { class: "output", tabindex: "0" });
      const ended = await python.task(
        { type: "run", source: editor.text() },
        {
          loading,
          started: () => {
            state.textContent = "Running…";
            put(output, h("p", { class: "panel-title" }, "Printed"), screen);
          },
          printed: (text) => {
            printed += text;
            screen.textContent = printed;
          },
        },
      );
      if (ended.kind === "stopped") {
        state.textContent = stopSentence(ended, false);
        return;
      }
      const { outcome, printed: all, cut } = ended.result;
      screen.textContent = all + (cut ? "\n… and more, which is not kept" : "");
      if (!all) put(output);
      state.textContent =
        outcome.kind === "loaded"
          ? all
            ? "It ran to its end."
            : "It ran to its end and printed nothing."
          : `${outcome.type}${outcome.line ? ` in line ${outcome.line}` : ""}: ${outcome.message}`;
    });

  const grade = () =>
    working(async () => {
      const source = editor.text();
      const extra = ownCases(app, lesson.id);
      const done: Record<string, any> = {};
      let report: any;
      let current: CaseNews | undefined;
      const ended = await python.task(
        { type: "grade", source, extra, skip: {} },
        {
          loading,
          started: () => {
            state.textContent = "Grading…";
            put(result, h("div", { class: "empty-result" }, h("p", {}, "Grading…")));
          },
          news: (news, strained) => {
            if ("id" in news) {
              current = news;
              if (news.record) done[news.id] = news.record;
            }
            if (!current) return;
            const wait = strained ? ". This machine is busy, so it takes longer than usual." : "";
            const words = `Grading: case ${current.number} of ${current.of}${wait}`;
            if (state.textContent !== words) state.textContent = words;
          },
        },
      );
      if (ended.kind === "done") {
        report = ended.result;
        state.textContent = report.passed ? "Graded: passed." : `Graded: ${report.counts.passed} of ${report.counts.cases} cases passed.`;
      } else {
        // The sentence first; what was found until then follows.
        const sentence = stopSentence(ended, true);
        state.textContent = sentence;
        put(result, h("p", { class: ended.why === "busy" ? "banner" : "banner bad" }, sentence));
        if (ended.why === "cancelled" || ended.why === "busy") return;
        report = await partial(ended, extra, done, current);
        if (!report) return;
      }
      put(
        result,
        ended.kind === "stopped" ? h("p", { class: "banner bad" }, stopSentence(ended, true)) : null,
        reportView(report, lab, editor),
      );
      graded = { code: source, report };
      // On a phone, and on a low screen, the result stands where nobody looks.
      const { top } = result.getBoundingClientRect();
      if (top < 60 || top > innerHeight - 160) result.scrollIntoView();
      const solution_shown = solutionShown && !(lesson.id in app.notebook.lab_passed);
      await keep({ lesson: lesson.id, code: source, report, passed: report.passed, solution_shown });
    });

  /** Puts an attempt into the notebook; where that fails, it can be tried again without grading again. */
  async function keep(attempt: Parameters<typeof app.store.addAttempt>[0]): Promise<void> {
    put(unkept);
    try {
      await app.store.addAttempt(attempt);
      await app.trying(() => app.refresh());
    } catch (error) {
      const again = h("button", { type: "button", class: "quiet", onclick: () => void keep(attempt) }, "Keep it now");
      put(unkept, h("p", { class: "trouble", role: "alert" }, `Not in your notebook yet: ${(error as Error).message}`), again);
    }
    showFacts();
  }

  /** A report of what was found before a case had to be stopped; made by the grader, with a function that does nothing. */
  async function partial(
    ended: Extract<Ended, { kind: "stopped" }>,
    extra: unknown[],
    done: Record<string, any>,
    current: CaseNews | undefined,
  ): Promise<any> {
    const skip: Record<string, unknown> = { "*": null, ...done };
    if (current && !done[current.id]) skip[current.id] = Number(ended.seconds.toFixed(1));
    const source = "def attend(*given): return None";
    const again = await python.task({ type: "grade", source, extra, skip }, { trusted: true });
    if (again.kind !== "done") return null;
    if (ended.why === "died") {
      const { failure } = again.result.cases.find((one: any) => one.id === current?.id) ?? {};
      if (failure) Object.assign(failure, { kind: "died", says: "Python itself ended when it ran this." });
    }
    return again.result;
  }

  /** Before anything is graded in this visit: what was graded last. */
  function showLast(): void {
    const [last] = app.notebook.attempts.filter((one) => one.lesson === lesson.id && one.report && isReport(one.report)).slice(-1);
    if (!last) {
      const passed = lesson.id in app.notebook.lab_passed;
      put(
        result,
        h(
          "div",
          { class: "empty-result" },
          h(
            "p",
            {},
            passed ? "The lab is passed, and the notebook has no report of it. " : "Nothing graded yet. ",
            "Grade runs your function on normal cases first, then on every clause of the contract.",
          ),
          h("p", { class: "hint" }, "A failure shows the smallest input that breaks it, both answers, the clause, and a likely cause."),
        ),
      );
      return;
    }
    const same = last.code === editor.text();
    put(
      result,
      h("p", { class: "hint" }, `Graded ${day(last.time)}${same ? "" : ", another text than the one in the editor"}.`),
      lastReport(last.report, same),
    );
    graded = { code: last.code, report: last.report };
  }

  /** An imported report that has the grader's shape and not its content must not take the lab with it. */
  function lastReport(report: any, same: boolean): HTMLElement {
    try {
      return reportView(report, lab!, same ? editor : null);
    } catch {
      return h("p", { class: "trouble" }, "Its report cannot be shown; grade again for a new one.");
    }
  }

  // What follows ---------------------------------------------------------------------------------------------------------

  function showFacts(): void {
    put(facts, labFact(app, lesson.id));
    const passed = lesson.id in app.notebook.lab_passed;
    if (passed && !afterwards.childElementCount) put(afterwards, realHead(app, editor.text));
    else if (!passed && !afterwards.childElementCount) {
      put(
        afterwards,
        h(
          "section",
          { class: "lab-part waiting" },
          h("h2", {}, "On a real head"),
          h("p", {}, "When all cases pass, your function reads a page through a trained model’s head here."),
        ),
      );
    }
    if (passed && afterwards.querySelector(".waiting")) put(afterwards, realHead(app, editor.text));
    solutionButton.textContent = passed ? "Compare with a solution" : "Show a solution";
  }

  const solutionPlace = h("div", {});
  const solutionButton = h("button", { type: "button", class: "quiet" }, "Show a solution");
  solutionButton.addEventListener("click", () =>
    app.trying(async () => {
      const passed = lesson.id in app.notebook.lab_passed;
      if (!passed && !solutionShown && !(await sure())) return;
      const { code } = await json(lab.solution!);
      // What cannot be written down is not shown.
      if (!passed && !solutionShown) {
        await app.store.addAttempt({
          lesson: lesson.id,
          code: editor.text(),
          report: null,
          passed: false,
          solution_shown: true,
        });
        solutionShown = true;
      }
      put(
        solutionPlace,
        h("h3", {}, "One solution among many"),
        h("pre", { tabindex: "0", class: "solution" }, h("code", {}, code)),
      );
      await app.refresh();
    }),
  );

  /** Asks in the page, so that it works without the browser's own dialog. */
  function sure(): Promise<boolean> {
    return new Promise((resolve) => {
      const answer = (yes: boolean) => () => {
        put(solutionPlace);
        resolve(yes);
        solutionButton.focus();
      };
      const yes = h("button", { type: "button", class: "solid", onclick: answer(true) }, "Show it");
      put(
        solutionPlace,
        h("p", {}, "Your notebook will say that you have seen a solution before you passed. Show it?"),
        h("div", { class: "buttons" }, yes, h("button", { type: "button", class: "quiet", onclick: answer(false) }, "Not yet")),
      );
      yes.focus();
    });
  }

  /** The text, with a report only if it is of this very text. */
  const submitted = () => {
    const code = editor.text();
    return { code, report: graded?.code === code ? graded.report : null };
  };
  const submit = h("button", { type: "button", class: "quiet" }, "Download submission");
  submit.addEventListener("click", () =>
    download(
      `${lesson.id}-submission.json`,
      "application/json",
      JSON.stringify({ schema: "qkv-lab-submission/1", lesson: lesson.id, ...submitted() }, null, 1),
    ),
  );
  const over = h("button", { type: "button", class: "quiet" }, "Start over");
  over.addEventListener("click", async () => {
    const text = editor.text();
    if (text === lab.starter) return app.say("The editor holds the first text already.");
    // First written down, then replaced: the first text is saved at once, and the editor forgets when it is left.
    if (swap(lab.starter) === false) return;
    const kept = text.trim() && !lab.starter.includes(text);
    app.say(kept ? "The editor holds the first text again; yours is kept below it." : "The editor holds the first text again.");
    await app.texts.settled();
    await offer();
  });

  const element = h(
    "div",
    { class: "page lab" },
    h(
      "header",
      { class: "lab-head" },
      h("p", { class: "kicker" }, h("a", { href: `#/lesson/${lesson.id}` }, lesson.title)),
      h("h1", { tabindex: "-1" }, "Lab: write attend"),
      h(
        "p",
        { class: "lab-task" },
        "Write attend(query, keys, values, allowed) in plain Python. It returns weights and context; for an input that has " +
          "no answer it raises ValueError, and TypeError where a type is wrong. It runs in this page and nowhere else.",
      ),
      facts,
    ),
    h(
      "div",
      { class: "lab-desk" },
      h(
        "div",
        { class: "lab-left" },
        editor.element,
        leaveHint,
        h("div", { class: "buttons lab-buttons" }, gradeButton, runButton, stopButton, h("span", { class: "spring" }), saved),
        meter,
        state,
        choice,
        left,
        output,
      ),
      h(
        "div",
        { class: "lab-right" },
        h("h2", { class: "unseen" }, "Result"),
        unkept,
        result,
        h(
          "div",
          { class: "buttons lab-more" },
          lab.solution ? solutionButton : null,
          submit,
          over,
        ),
        solutionPlace,
      ),
    ),
    afterwards,
    failureForm(app, lesson, editor.text),
  );
  showLast();
  showFacts();
  return {
    title: "Lab",
    element,
    refreshed: () => {
      const newer = app.notebook.drafts.find((one) => one.lesson === lesson.id);
      if (newer && autosave.offer(newer.code, newer.revision)) editor.set(newer.code);
      showFacts();
    },
    left: () => {
      autosave.flush();
      python.cancel();
    },
  };
}
