// What every view shares: the store, the notebook as last read, the lessons, and one polite voice for short messages.

import { h } from "./dom.ts";
import { openStore, type Store } from "./store.ts";
import type { Config, Lesson, LessonEntry, Notebook } from "./types.ts";

export interface App {
  config: Config;
  store: Store;
  lessons: LessonEntry[];
  notebook: Notebook;
  lesson(id: string): Promise<Lesson>;
  /** Reads the notebook again. */
  refresh(): Promise<void>;
  /** Runs something that can fail and says so in words; gives undefined then. */
  trying<T>(action: () => Promise<T>): Promise<T | undefined>;
  say(message: string, bad?: boolean): void;
}

export interface View {
  title: string;
  element: HTMLElement;
  /** Called after the view stands in the page. */
  shown?(): void;
  /** A newer notebook was read. */
  refreshed?(): void;
  left?(): void;
}

export async function json(address: string): Promise<any> {
  const response = await fetch(address);
  if (!response.ok) {
    const answer = await response.json().catch(() => ({}));
    throw new Error(answer.error ?? `${address}: the server answered ${response.status}`);
  }
  return response.json();
}

export async function start(voice: HTMLElement): Promise<App> {
  const config: Config = await json("config.json");
  const store = openStore(config);
  const [lessons, notebook] = await Promise.all([json("api/lessons.json"), store.read()]);
  const known = new Map<string, Promise<Lesson>>();
  const app: App = {
    config,
    store,
    lessons,
    notebook,
    lesson(id) {
      if (!known.has(id)) known.set(id, json(`api/lessons/${id}.json`));
      return known.get(id)!;
    },
    async refresh() {
      app.notebook = await store.read();
    },
    async trying(action) {
      try {
        return await action();
      } catch (error) {
        app.say((error as Error).message, true);
        return undefined;
      }
    },
    say(message, bad = false) {
      const line = h("p", { class: bad ? "message bad" : "message" }, message);
      voice.replaceChildren(line);
      setTimeout(() => line.remove(), bad ? 12000 : 5000);
    },
  };
  return app;
}

export function day(time: string): string {
  const date = new Date(time);
  return Number.isNaN(date.getTime())
    ? time
    : date.toLocaleString("en-GB", { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit" });
}
