// What the server says, and what the notebook holds.

export interface Choice {
  html: string;
  right: boolean;
}

export interface Ask {
  id: string;
  kind: "pause" | "check";
  question: string;
  answer: string;
  choices: Choice[] | null;
}

export interface Section {
  id: string;
  title: string;
  html: string;
  prompt: string | null;
  checks: Ask[];
}

export interface Lab {
  starter: string;
  hints: string[];
  solution: string | null;
}

export interface Lesson {
  id: string;
  title: string;
  minutes: number;
  outcomes: string[];
  intro: string;
  sections: Section[];
  lab: Lab | null;
}

export interface LessonEntry {
  id: string;
  title: string;
  minutes?: number;
  /** A title is HTML, a name the same as text. */
  sections: { id: string; title: string; name?: string }[];
}

export interface Config {
  version: string;
  static?: boolean;
  notebook_path?: string;
  /** Python files that the lab's worker loads, by file name, with their addresses. */
  python?: Record<string, string>;
}

export interface Note {
  lesson: string;
  section: string;
  text: string;
  revision: number;
  updated: string;
}

export interface Bookmark {
  lesson: string;
  section: string;
}

export interface Draft {
  lesson: string;
  code: string;
  revision: number;
}

export interface Attempt {
  id: string;
  lesson: string;
  time: string;
  code: string;
  passed: boolean;
  report: any;
  solution_shown: boolean;
}

export interface Failure {
  id: string;
  lesson: string;
  form: "numbers" | "json" | "python";
  text: string;
  note: string;
  verdict: any;
  time: string;
}

export interface Notebook {
  schema: number;
  /** Of this one file, whatever it is called and wherever it lies. */
  id: string;
  notes: Note[];
  bookmarks: Bookmark[];
  drafts: Draft[];
  attempts: Attempt[];
  lab_passed: Record<string, string>;
  completed: Record<string, string>;
  cases: Failure[];
}
