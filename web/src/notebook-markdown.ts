// The notebook to read and print, as qkv.learn.notebook_document.to_markdown writes it for a server's.

import type { LessonEntry } from "./types.ts";

/** `document` is an exported notebook; what has no title in `lessons` goes by its id. */
export function markdown(document: any, lessons: LessonEntry[]): string {
  const parts = ["# My notebook"];
  if (document.exported) parts.push(`Exported ${moment(document.exported)}.`);
  for (const lesson of kept(document, lessons)) {
    const known = lessons.find(({ id }) => id === lesson);
    const order = (known?.sections ?? []).map(({ id }) => id);
    const title = (section: string) => known?.sections.find(({ id }) => id === section)?.name ?? section;
    const of = (name: string): any[] => (document[name] ?? []).filter((row: any) => row.lesson === lesson);
    const fact = (name: string) => (document[name]?.[lesson] ? moment(document[name][lesson]) : "not yet");
    parts.push(`## ${known?.title ?? lesson}`);
    parts.push(`- Completed, as I judge it myself: ${fact("completed")}\n- Lab passed: ${fact("lab_passed")}`);
    const marked = of("bookmarks").map(({ section }) => `- ${title(section)}`);
    if (marked.length) parts.push(`Bookmarks:\n\n${marked.join("\n")}`);
    const place = (section: string) => (order.includes(section) ? order.indexOf(section) : order.length);
    const notes = of("notes").filter(({ text }) => text);
    notes.sort((a, b) => place(a.section) - place(b.section) || (a.section < b.section ? -1 : 1));
    for (const { section, text } of notes) parts.push(`### Note: ${title(section)}`, text);
    for (const { code, updated } of of("drafts")) {
      if (code) parts.push(`### In the editor, ${moment(updated)}`, fenced(code, "python"));
    }
    for (const { time, note, text, form, verdict } of of("cases")) {
      parts.push(`### A failure to test, ${moment(time)}`, ...(note ? [note] : []));
      parts.push(fenced(text, form === "python" ? "python" : "json"), `Verdict: ${plain(verdict)}`);
    }
    for (const { time, code, passed, solution_shown } of of("attempts")) {
      const shown = solution_shown ? ", after the solution was shown" : "";
      parts.push(`### Attempt, ${moment(time)}: ${passed ? "passed" : "not passed"}${shown}`, fenced(code, "python"));
    }
  }
  if (parts.length <= 2) parts.push("Nothing is in it yet.");
  return `${parts.join("\n\n")}\n`;
}

/** The lessons of which something is kept, in the order of the titles, those without a title last. */
function kept(document: any, lessons: LessonEntry[]): string[] {
  const rows = ["notes", "bookmarks", "drafts", "attempts", "cases"].flatMap((name) => document[name] ?? []);
  const ids = new Set<string>(rows.map(({ lesson }) => lesson));
  for (const name of ["lab_passed", "completed"]) for (const lesson of Object.keys(document[name] ?? {})) ids.add(lesson);
  const known = lessons.map(({ id }) => id).filter((id) => ids.has(id));
  return [...known, ...[...ids].filter((id) => !known.includes(id)).sort()];
}

const moment = (time: string) => `${time.slice(0, 10)} ${time.slice(11, 16)} UTC`;

/** A fence longer than any run of back quotes inside. */
function fenced(code: string, language: string): string {
  const longest = Math.max(0, ...(code.match(/`+/g) ?? []).map((run) => run.length));
  const fence = "`".repeat(Math.max(3, longest + 1));
  return `${fence}${language}\n${code.replace(/\n$/, "")}\n${fence}`;
}

function plain(verdict: any): string {
  if (typeof verdict === "string") return verdict;
  for (const key of ["message", "sentence", "text", "summary"]) if (typeof verdict?.[key] === "string") return verdict[key];
  return JSON.stringify(verdict ?? null);
}
