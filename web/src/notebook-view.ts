// My notebook: everything that was written, bookmarked, tried and passed, to search, edit, take away and bring back.

import { day, type App, type View } from "./app.ts";
import { leftoverSentence } from "./conflict.ts";
import { download, h, later, put, unique } from "./dom.ts";
import { completedFact, completedToggle, labFact } from "./facts.ts";
import { keptCase } from "./lab/failure.ts";
import { isReport } from "./notebook-document.ts";
import { noteField, type NoteField } from "./note.ts";
import type { Preview } from "./store.ts";
import type { LessonEntry } from "./types.ts";

interface Found {
  element: HTMLElement;
  text: () => string;
}

export function notebookView(app: App): View {
  const body = h("div", {});
  const count = h("p", { class: "state", role: "status" });
  const searchId = unique("search");
  const search = h("input", { type: "search", id: searchId, oninput: () => filter() });
  const leftovers = h("div", {});
  let entries: Found[] = [];
  let notes: NoteField[] = [];

  function show(): void {
    for (const note of notes) note.close();
    notes = [];
    entries = [];
    const known = new Set(app.lessons.map((lesson) => lesson.id));
    const book = app.notebook;
    const others = [...book.notes, ...book.bookmarks, ...book.attempts, ...book.cases, ...book.drafts].map((row) => row.lesson);
    const strangers: LessonEntry[] = [...new Set(others)]
      .filter((id) => !known.has(id))
      .map((id) => ({ id, title: id, sections: [] }));
    put(body, ...[...app.lessons, ...strangers].map(drawn));
    void showLeftovers();
    filter.flush();
  }

  /** What closed tabs left unsaved; also of a section or lesson that is no more, and so has no other place. */
  async function showLeftovers(): Promise<void> {
    const left = await app.leftovers();
    const address = (key: string) => {
      const [kind, lesson, section] = key.split(/[ /]/);
      return kind === "note" ? `#/lesson/${lesson}/${section}` : `#/lab/${lesson}`;
    };
    put(
      leftovers,
      ...left.map((one) =>
        h(
          "div",
          { class: "conflict" },
          h("p", { class: "state bad" }, leftoverSentence(one)),
          h("pre", { class: "other-text", tabindex: "0", "aria-label": "The unsaved text" }, one.text || "(empty)"),
          h(
            "div",
            { class: "buttons" },
            h("a", { class: "quiet", href: address(one.key) }, "Go where it belongs"),
            h(
              "button",
              { type: "button", class: "quiet", onclick: () => (app.forget(one), void showLeftovers()) },
              "Throw it away",
            ),
          ),
        ),
      ),
    );
  }

  /** What cannot be drawn takes neither the rest nor the export with it. */
  function drawn(lesson: LessonEntry): HTMLElement {
    try {
      return lessonPart(lesson);
    } catch (error) {
      return h("p", { class: "trouble" }, `What is kept of ${lesson.id} cannot be shown (${(error as Error).message}). Export has it.`);
    }
  }

  function lessonPart(lesson: LessonEntry): HTMLElement {
    const facts = h("div", { class: "facts" });
    const showFacts = () => put(facts, labFact(app, lesson.id), completedFact(app, lesson.id));
    showFacts();
    const book = app.notebook;
    const title = (section: string) => plain(lesson.sections.find((one) => one.id === section)?.title ?? section);
    const place = (section: string) => lesson.sections.findIndex((one) => one.id === section);
    const of = <T extends { lesson: string }>(rows: T[]) => rows.filter((row) => row.lesson === lesson.id);

    const marks = of(book.bookmarks).sort((a, b) => place(a.section) - place(b.section));
    const written = of(book.notes)
      .filter((note) => note.text)
      .sort((a, b) => place(a.section) - place(b.section));
    const attempts = of(book.attempts).reverse();
    const cases = of(book.cases);
    return h(
      "section",
      { class: "book-lesson", "aria-label": plain(lesson.title) },
      h("h2", {}, h("a", { href: `#/lesson/${lesson.id}` }, plain(lesson.title))),
      facts,
      completedToggle(app, lesson.id, showFacts),
      part(
        "Bookmarks",
        marks.map((mark) =>
          entry(h("li", {}, "★ ", h("a", { href: `#/lesson/${lesson.id}/${mark.section}` }, title(mark.section))), title(mark.section)),
        ),
        "No bookmark yet.",
      ),
      part(
        "Notes",
        written.map((note) => {
          const link = h("a", { href: `#/lesson/${lesson.id}/${note.section}` }, title(note.section));
          const name = h("span", {}, `Note on ${title(note.section)}`, h("span", { class: "hint" }, `, ${day(note.updated)}`));
          const field = noteField(app, lesson.id, note.section, name);
          notes.push(field);
          return entry(h("li", { class: "book-note" }, h("p", { class: "hint" }, link), field.element), () => `${title(note.section)} ${field.text()}`);
        }),
        "No note yet. There is a place for one beside each section.",
      ),
      part(
        "Failures to test",
        cases.map((failure) => entry(keptCase(app, failure, show), `${failure.text} ${failure.note} ${failure.verdict?.sentence ?? ""}`)),
        "None written down yet.",
      ),
      part(
        "Attempts at the lab",
        attempts.map((attempt) =>
          entry(
            h(
              "li",
              {},
              h(
                "details",
                { class: "attempt" },
                h(
                  "summary",
                  {},
                  h("span", { class: attempt.passed ? "attempt-mark good" : "attempt-mark" }, attempt.passed ? "passed" : "not passed"),
                  ` ${day(attempt.time)}`,
                  attempt.report && isReport(attempt.report) ? `, ${attempt.report.counts.passed} of ${attempt.report.counts.cases} cases` : ", no report",
                  attempt.solution_shown ? ", after a solution was shown" : "",
                ),
                h("pre", { tabindex: "0" }, h("code", {}, attempt.code)),
              ),
            ),
            `${attempt.code} ${attempt.passed ? "passed" : "not passed"}`,
          ),
        ),
        "None yet.",
      ),
    );
  }

  function entry(element: HTMLElement, text: string | (() => string)): HTMLElement {
    entries.push({ element, text: typeof text === "string" ? () => text : text });
    return element;
  }

  function part(title: string, items: HTMLElement[], none: string): HTMLElement {
    return h(
      "div",
      { class: "book-part" },
      h("h3", {}, title),
      items.length ? h("ul", { class: "book-list" }, ...items) : h("p", { class: "hint" }, none),
    );
  }

  const filter = later(() => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let found = 0;
    for (const { element, text } of entries) {
      const all = text().toLowerCase();
      element.hidden = !words.every((word) => all.includes(word));
      if (!element.hidden) found += 1;
    }
    body.classList.toggle("searching", words.length > 0);
    count.textContent = words.length ? `${found} of ${entries.length} entries found` : "";
  }, 80);

  // Away and back -----------------------------------------------------------------------------------------------------

  const save = (format: "json" | "markdown") => () =>
    app.trying(async () => {
      await app.texts.settled();
      const text = await app.store.exportText(format);
      if (format === "json") download("qkv-notebook.json", "application/json", text);
      else download("qkv-notebook.md", "text/markdown", text);
    });
  const preview = h("div", { class: "import-preview", role: "status" });
  const fileId = unique("file");
  const file = h("input", { type: "file", id: fileId, accept: ".json,application/json", class: "unseen" });
  file.addEventListener("change", () =>
    app.trying(async () => {
      const chosen = file.files?.[0];
      if (!chosen) return;
      let document: unknown;
      try {
        document = JSON.parse(await chosen.text());
      } catch {
        throw new Error("This file is no JSON. Choose the file that Export saved.");
      }
      file.value = "";
      const would = await app.store.previewImport(document);
      const cancel = h("button", { type: "button", class: "quiet", onclick: () => put(preview) }, "Leave it");
      const take = h("button", { type: "button", class: "solid" }, "Import");
      take.addEventListener("click", () =>
        app.trying(async () => {
          await app.store.takeIn(document);
          await app.refresh();
          put(preview);
          show();
          app.say("Imported. Nothing that was here is lost.");
        }),
      );
      put(preview, previewView(would), h("div", { class: "buttons" }, changes(would) ? take : null, cancel));
      (changes(would) ? take : cancel).focus();
    }),
  );

  const element = h(
    "div",
    { class: "page notebook" },
    h("h1", { tabindex: "-1" }, "My notebook"),
    h(
      "p",
      { class: "hint" },
      app.store.inBrowser
        ? "It lives in this browser, which may wipe it after some days without a visit. Export it to keep it."
        : `It is one file of yours: ${app.config.notebook_path ?? ""}`,
    ),
    h(
      "div",
      { class: "book-tools" },
      h("div", { class: "field search-field" }, h("label", { for: searchId }, "Search"), search),
      h(
        "div",
        { class: "buttons" },
        h("button", { type: "button", class: "quiet", onclick: save("markdown") }, "Export as Markdown"),
        h("button", { type: "button", class: app.store.inBrowser ? "solid" : "quiet", onclick: save("json") }, "Export as JSON"),
        h("button", { type: "button", class: "quiet", onclick: () => file.click() }, "Import…"),
        h("label", { for: fileId, class: "unseen" }, "File to import"),
        file,
      ),
    ),
    count,
    preview,
    leftovers,
    body,
  );
  file.tabIndex = -1;
  show();
  return {
    title: "My notebook",
    element,
    refreshed: () => {
      // Someone who is writing is not disturbed.
      if (!body.contains(document.activeElement)) show();
    },
    left: () => {
      for (const note of notes) note.close();
    },
  };
}

function plain(html: string): string {
  return new DOMParser().parseFromString(html, "text/html").body.textContent ?? "";
}

function changes(would: Preview): number {
  return would.new.length + would.changed.length + would.conflicts.length;
}

function previewView(would: Preview): HTMLElement {
  const names: Record<string, string> = {
    note: "note",
    bookmark: "bookmark",
    draft: "text of the lab’s editor",
    attempt: "attempt",
    case: "failure to test",
    completed: "“completed”",
    lab_passed: "“lab passed”",
  };
  const list = (title: string, entries: Preview["new"], both = false) =>
    entries.length
      ? h(
          "div",
          {},
          h("h3", {}, `${title}: ${entries.length}`),
          h(
            "ul",
            {},
            ...entries.slice(0, 30).map((one) =>
              h(
                "li",
                {},
                [names[one.kind] ?? one.kind, one.section ?? one.lesson, one.time ? day(one.time) : ""].filter(Boolean).join(", "),
                both && one.here !== undefined ? h("pre", { class: "other-text", tabindex: "0" }, one.merged ?? "") : null,
              ),
            ),
            entries.length > 30 ? h("li", {}, `and ${entries.length - 30} more`) : null,
          ),
        )
      : null;
  return h(
    "div",
    {},
    h("h2", {}, "What the import would do"),
    list("New", would.new),
    list("Gains text or an earlier time", would.changed),
    list("Differs, both texts are kept", would.conflicts, true),
    h("p", { class: "hint" }, changes(would) ? `${would.equal} entries are here already.` : "Everything in this file is here already."),
  );
}
