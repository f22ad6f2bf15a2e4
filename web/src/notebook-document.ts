// A notebook as one document, checked when it comes from outside: the fields, the order and the sentences of
// qkv.learn.notebook_document, so that what one of the two refuses the other does not take.

type Row = Record<string, any>;

const IDENTIFIER = /^[a-z0-9][a-z0-9-]{0,79}$/;
const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z$/;

const KINDS = {
  id: ["small letters, digits and -", (x) => typeof x === "string" && IDENTIFIER.test(x)],
  text: ["text", (x) => typeof x === "string"],
  time: ["a time such as 2026-01-31T12:00:00Z", (x) => typeof x === "string" && TIME.test(x)],
  flag: ["true or false", (x) => typeof x === "boolean"],
  form: ["numbers, json or python", (x) => x === "numbers" || x === "json" || x === "python"],
  report: ["null or a report of the grader", isReport],
  verdict: ["null, text or a verdict of the grader", isVerdict],
} satisfies Record<string, [string, (x: any) => boolean]>;

const LISTS: Record<string, Record<string, keyof typeof KINDS>> = {
  notes: { lesson: "id", section: "id", text: "text", updated: "time" },
  bookmarks: { lesson: "id", section: "id" },
  drafts: { lesson: "id", code: "text", updated: "time" },
  attempts: { id: "id", lesson: "id", time: "time", code: "text", passed: "flag", report: "report", solution_shown: "flag" },
  cases: { id: "id", lesson: "id", form: "form", text: "text", note: "text", verdict: "verdict", time: "time" },
};
const FACTS = ["lab_passed", "completed"];
const WITH_REVISION = ["notes", "drafts"];

/** Whether a page can show it: what the grader makes has counts, and cases of which a failed one says how. */
export function isReport(value: any): boolean {
  if (value === null) return true;
  if (!isObject(value) || !isObject(value.counts)) return false;
  if (typeof value.counts.passed !== "number" || typeof value.counts.cases !== "number") return false;
  return Array.isArray(value.cases) && value.cases.every(isGraded);
}

function isGraded(one: any): boolean {
  if (!isObject(one) || typeof one.title !== "string" || typeof one.status !== "string") return false;
  return one.status !== "failed" || isObject(one.failure);
}

function isVerdict(value: any): boolean {
  if (value === null || typeof value === "string") return true;
  if (!isObject(value) || (value.sentence != null && typeof value.sentence !== "string")) return false;
  return value.input == null || isObject(value.input);
}

/** The document, every field of the kind it has to be; throws a sentence that names the first that is not. */
export function checkedDocument(document: any): Row {
  if (!isObject(document) || document.format !== "qkv-notebook") {
    throw new Error(
      'document must be an exported notebook with "format": "qkv-notebook", but another file came; ' +
        "choose the JSON file that Export saved",
    );
  }
  if (document.version !== 1) {
    throw new Error(
      `document must be of version 1, but version ${String(document.version ?? "None").slice(0, 20)} came; ` +
        "import it with the qkv that exported it, or a newer one",
    );
  }
  const fields = ["format", "version", "exported", ...Object.keys(LISTS), ...FACTS];
  for (const name of Object.keys(document)) if (!fields.includes(name)) throw wrong(name.slice(0, 80), "no field of a notebook");
  const content: Row = { format: "qkv-notebook", version: 1, exported: document.exported ?? null };
  for (const name of Object.keys(LISTS)) content[name] = checkedRows(name, Object.hasOwn(document, name) ? document[name] : []);
  for (const name of FACTS) content[name] = checkedFacts(name, Object.hasOwn(document, name) ? document[name] : {});
  if (content.exported !== null) check(content.exported, "exported", "time");
  return content;
}

function checkedRows(name: string, rows: any): Row[] {
  if (!Array.isArray(rows)) throw wrong(name, "not a list");
  const kinds = LISTS[name];
  const seen = new Set<string>();
  return rows.map((row, at) => {
    if (!isObject(row)) throw wrong(`${name}[${at}]`, "not an object");
    for (const key of Object.keys(row)) {
      const known = Object.hasOwn(kinds, key) || (key === "revision" && WITH_REVISION.includes(name));
      if (!known) throw wrong(`${name}[${at}].${key.slice(0, 80)}`, `no field of ${name}`);
    }
    for (const [key, kind] of Object.entries(kinds)) {
      if (!Object.hasOwn(row, key)) throw wrong(`${name}[${at}].${key}`, "missing");
      check(row[key], `${name}[${at}].${key}`, kind);
    }
    if (seen.has(identity(row))) throw wrong(`${name}[${at}]`, "there twice");
    seen.add(identity(row));
    return bare(name, row);
  });
}

function checkedFacts(name: string, facts: any): Row {
  if (!isObject(facts)) throw wrong(name, "not an object");
  for (const [lesson, time] of Object.entries(facts)) {
    check(lesson, `a lesson of ${name}`, "id");
    check(time, `${name}.${lesson}`, "time");
  }
  return { ...facts };
}

function check(value: any, name: string, kind: keyof typeof KINDS): void {
  const [said, holds] = KINDS[kind];
  if (!holds(value)) throw wrong(name, `not ${said}`);
}

function wrong(name: string, what: string): Error {
  return new Error(
    `document must be an exported notebook, but ${name} is ${what}; choose the JSON file that Export saved, unchanged`,
  );
}

/** A row with the fields that are exported, in their order. */
export function bare(name: string, row: Row): Row {
  return Object.fromEntries(Object.keys(LISTS[name]).map((key) => [key, row[key]]));
}

function identity(row: Row): string {
  return row.id ?? `${row.lesson} ${row.section ?? ""}`;
}

/** What can be read of a notebook that a browser has stored, and whether that is all of it. */
export function salvaged(text: string): { content: Row; whole: boolean } {
  let stored: any;
  try {
    stored = JSON.parse(text);
  } catch {
    // Cut short: nothing of it can be read.
  }
  let whole = isObject(stored);
  const content: Row = {};
  for (const [name, kinds] of Object.entries(LISTS)) {
    const rows = stored?.[name] ?? [];
    const seen = new Set<string>();
    content[name] = [];
    if (!Array.isArray(rows)) whole = false;
    else for (const row of rows) {
      const kept = readable(row, kinds);
      if (kept && !seen.has(identity(kept))) {
        seen.add(identity(kept));
        if (WITH_REVISION.includes(name) && !Number.isSafeInteger(kept.revision)) kept.revision = 0;
        content[name].push(kept);
        whole &&= Object.entries(kinds).every(([key]) => kept[key] === row[key]);
      } else whole = false;
    }
  }
  for (const name of FACTS) {
    const facts = stored?.[name] ?? {};
    const good = isObject(facts) ? Object.entries(facts).filter(([lesson, time]) => KINDS.id[1](lesson) && KINDS.time[1](time)) : [];
    content[name] = Object.fromEntries(good);
    whole &&= isObject(facts) && good.length === Object.keys(facts).length;
  }
  return { content, whole };
}

/** A stored row, without a report or verdict that no page can show; nothing where another field is not what it has to be. */
function readable(row: any, kinds: Record<string, keyof typeof KINDS>): Row | null {
  if (!isObject(row)) return null;
  const kept: Row = { ...row };
  for (const [key, kind] of Object.entries(kinds)) {
    if (KINDS[kind][1](row[key])) continue;
    if (kind === "report" || kind === "verdict") kept[key] = null;
    // The time of a text was not always stored.
    else if (key !== "updated" || row[key] !== undefined) return null;
  }
  return kept;
}

function isObject(value: any): value is Row {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
