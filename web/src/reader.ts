// One lesson to read: contents, sections, figures, questions, and a note beside each section.

import type { App, View } from "./app.ts";
import { h, put, unique } from "./dom.ts";
import { bookmarkButton, completedFact, completedToggle, labFact } from "./facts.ts";
import { drawFigure } from "./figures/index.ts";
import { noteField, type NoteField } from "./note.ts";
import { openTrace, traceView } from "./trace-view.ts";
import type { Ask, Lesson, Section } from "./types.ts";

export function reader(app: App, lesson: Lesson): View {
  const notes = new Map<string, NoteField>();
  const facts = h("div", { class: "facts" });
  const contents = h("ol", { class: "contents-list" });
  const showFacts = () => {
    put(facts, labFact(app, lesson.id), completedFact(app, lesson.id));
    const marked = new Set(app.notebook.bookmarks.filter((m) => m.lesson === lesson.id).map((m) => m.section));
    put(
      contents,
      ...lesson.sections.map((section) =>
        h(
          "li",
          {},
          h(
            "a",
            { href: `#/lesson/${lesson.id}/${section.id}`, "data-section": section.id },
            section.title,
            marked.has(section.id) ? h("span", { class: "star" }, " ★", h("span", { class: "unseen" }, " bookmarked")) : null,
          ),
        ),
      ),
      lesson.lab ? h("li", { class: "lab-link" }, h("a", { href: `#/lab/${lesson.id}` }, "Lab: write attend")) : null,
    );
    mark();
  };
  let current = "";
  const mark = () => {
    for (const link of contents.querySelectorAll<HTMLElement>("a[data-section]")) {
      if (link.dataset.section === current) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  };

  const sections = lesson.sections.map((section) => sectionView(app, lesson, section, notes, showFacts));
  const element = h(
    "div",
    { class: "reader" },
    h(
      "nav",
      { class: "contents", "aria-label": "Contents of the lesson" },
      h("details", { open: innerWidth > 1000 }, h("summary", {}, "Contents"), contents, facts),
    ),
    h(
      "div",
      { class: "lesson" },
      h(
        "header",
        { class: "lesson-head" },
        h("p", { class: "kicker" }, `Lesson · about ${lesson.minutes} minutes`),
        h("h1", { tabindex: "-1" }, lesson.title),
        html("div", "prose intro", lesson.intro),
        h(
          "div",
          { class: "outcomes" },
          h("h2", {}, "Afterwards you can"),
          h("ul", {}, ...lesson.outcomes.map((outcome) => html("li", "", outcome))),
        ),
      ),
      ...sections,
      h(
        "footer",
        { class: "lesson-end" },
        lesson.lab
          ? h(
              "div",
              { class: "lab-card" },
              h("h2", {}, "The lab"),
              h(
                "p",
                {},
                "Write attend yourself. It is graded case by case against the contract, in this page; a failure shows the " +
                  "smallest input that breaks it.",
              ),
              h("a", { class: "solid", href: `#/lab/${lesson.id}` }, "Open the lab"),
            )
          : null,
        h(
          "div",
          { class: "own-card" },
          h("h2", {}, "Your own judgement"),
          completedToggle(app, lesson.id, showFacts),
          h("p", { class: "hint" }, "This says nothing about the lab, and passing the lab does not tick it."),
        ),
      ),
    ),
  );
  showFacts();

  const watcher = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) if (entry.isIntersecting) current = (entry.target as HTMLElement).id;
      mark();
    },
    { rootMargin: "-20% 0px -70% 0px" },
  );
  return {
    title: lesson.title,
    element,
    shown: () => {
      for (const section of sections) watcher.observe(section);
    },
    refreshed: () => {
      for (const note of app.notebook.notes) {
        if (note.lesson === lesson.id) notes.get(note.section)?.offer(note.text, note.revision);
      }
      showFacts();
    },
    left: () => {
      watcher.disconnect();
      for (const note of notes.values()) note.close();
    },
  };
}

/** HTML that the package built and sanitised. */
export function html<K extends keyof HTMLElementTagNameMap>(tag: K, name: string, text: string): HTMLElementTagNameMap[K] {
  const element = h(tag, name ? { class: name } : {});
  element.innerHTML = text;
  return element;
}

function sectionView(
  app: App,
  lesson: Lesson,
  section: Section,
  notes: Map<string, NoteField>,
  changed: () => void,
): HTMLElement {
  const body = html("div", "prose", section.html);
  for (const figure of body.querySelectorAll<HTMLElement>("figure[data-figure]")) drawFigure(figure, openTrace);
  for (const figure of body.querySelectorAll<HTMLElement>("figure[data-trace]")) stepByStep(figure);
  for (const place of body.querySelectorAll<HTMLElement>("[data-ask]")) {
    const ask = section.checks.find((one) => one.id === place.dataset.ask);
    if (ask) question(place, ask);
  }
  for (const table of body.querySelectorAll("table")) scrolling(table);
  for (const snippet of body.querySelectorAll<HTMLElement>(".snippet")) copyable(snippet);
  for (const math of body.querySelectorAll("figure.formula")) math.setAttribute("tabindex", "0");
  for (const code of body.querySelectorAll("pre")) code.setAttribute("tabindex", "0");
  // A short list of numbers is read as one thing; what is long may still be broken.
  unbroken(body);
  for (const code of body.querySelectorAll(":not(pre) > code")) code.classList.toggle("whole", code.textContent!.length <= 20);

  const label = section.prompt ? html("span", "prompt", section.prompt) : h("span", { class: "prompt" }, "What you want to keep of this section");
  // A paragraph cannot stand inside of a label.
  for (const paragraph of label.querySelectorAll("p")) paragraph.replaceWith(...paragraph.childNodes);
  const field = noteField(app, lesson.id, section.id, label);
  notes.set(section.id, field);
  const titleId = unique("title");
  const aside = h(
    "aside",
    { class: "margin", "aria-label": `Note on: ${section.title}` },
    h("p", { class: "margin-title", "aria-hidden": "true" }, "Note"),
    field.element,
  );
  const element = h(
    "section",
    { class: "section", id: section.id, "aria-labelledby": titleId },
    h(
      "div",
      { class: "section-head" },
      h("h2", { id: titleId, tabindex: "-1" }, section.title),
      bookmarkButton(app, lesson.id, section.id, section.title, changed),
    ),
    body,
    aside,
  );
  // The lesson's last section invites a failure to test; the form comes with the lab.
  if (lesson.lab && section === lesson.sections[lesson.sections.length - 1]) {
    const place = h("div", { class: "failure-place" });
    const open = h("button", { type: "button", class: "quiet" }, "Write down a failure to test");
    open.addEventListener("click", async () => {
      open.disabled = true;
      const form = await app.trying(async () => (await import("./lab/failure.ts")).failureForm(app, lesson));
      if (form) {
        place.replaceChildren(form);
        form.querySelector<HTMLElement>("textarea, select, input")?.focus();
      } else open.disabled = false;
    });
    place.append(open);
    body.append(place);
  }
  return element;
}

/** A table of a trace gets the steps behind a button. */
function stepByStep(figure: HTMLElement): void {
  const { query, keys, values, allowed } = JSON.parse(figure.dataset.trace!);
  const place = h("div", {});
  const button = h("button", { type: "button", class: "quiet", "aria-expanded": "false" }, "Open it step by step");
  button.addEventListener("click", () => {
    const open = place.childElementCount === 0;
    put(place, open ? traceView({ query, keys, values, mask: allowed }) : null);
    button.setAttribute("aria-expanded", String(open));
    button.textContent = open ? "Close the steps" : "Open it step by step";
  });
  figure.append(button, place);
}

function question(place: HTMLElement, ask: Ask): void {
  const answer = h("div", { class: "answer" });
  answer.innerHTML = ask.answer;
  const reveal = h("details", {}, h("summary", {}, "Show the answer"), answer);
  const title = h("p", { class: "ask-title" }, ask.kind === "check" ? "Check" : "Pause and reason");
  if (!ask.choices?.length) {
    put(place, title, html("div", "question", ask.question), reveal);
    return;
  }
  const name = unique("choice");
  const verdict = h("p", { class: "verdict", role: "status" });
  const rows = ask.choices.map((choice, i) => {
    const input = h("input", { type: "radio", name, value: i });
    return { choice, input, element: h("label", { class: "choice" }, input, html("span", "", choice.html)) };
  });
  const check = h("button", { type: "button", class: "solid" }, "Check");
  check.addEventListener("click", () => {
    const chosen = rows.find((row) => row.input.checked);
    for (const row of rows) row.element.classList.remove("right", "wrong");
    if (!chosen) verdict.textContent = "Choose one first.";
    else {
      chosen.element.classList.add(chosen.choice.right ? "right" : "wrong");
      verdict.textContent = chosen.choice.right
        ? "Yes. The answer below says why."
        : "Not that one. Think of what the model is asked to do at position t, and try again.";
      if (chosen.choice.right) reveal.open = true;
    }
  });
  put(
    place,
    title,
    h("fieldset", {}, h("legend", {}, html("div", "question", ask.question)), ...rows.map((row) => row.element)),
    h("div", { class: "buttons" }, check, verdict),
    reveal,
  );
}

/** Takes the places for a line break out of short lists in running text, also where a number in them is an element. */
function unbroken(body: HTMLElement): void {
  for (const block of body.querySelectorAll("p, li, figcaption")) {
    const all = block.textContent ?? "";
    const walker = document.createTreeWalker(block, NodeFilter.SHOW_TEXT);
    const inside = [...all.matchAll(/\[[^[\]]{1,24}\]/g)].map((list) => [list.index, list.index + list[0].length]);
    for (let at = 0, node = walker.nextNode(); node; node = walker.nextNode()) {
      const text = node.textContent ?? "";
      const start = at;
      const whole = text.replace(/ /g, (blank, i: number) =>
        inside.some(([from, to]) => from < start + i && start + i < to) ? "\u00a0" : blank,
      );
      // Code is copied, and Python does not take another blank for one.
      if (whole !== text && !node.parentElement?.closest("code")) node.textContent = whole;
      at += text.length;
    }
  }
}

function scrolling(table: HTMLTableElement): void {
  if (table.parentElement?.classList.contains("scrolls")) return;
  const box = h("div", { class: "scrolls", tabindex: "0", role: "group", "aria-label": "Table" });
  table.replaceWith(box);
  box.append(table);
}

function copyable(snippet: HTMLElement): void {
  const code = snippet.querySelector("code");
  if (!code) return;
  const button = h("button", { type: "button", class: "copy" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent ?? "");
      button.textContent = "Copied";
    } catch {
      getSelection()?.selectAllChildren(code);
      button.textContent = "Selected: press Ctrl+C";
    }
    setTimeout(() => (button.textContent = "Copy"), 2500);
  });
  snippet.prepend(button);
}
