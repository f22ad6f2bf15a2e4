import type { App } from "../app.ts";
import { h } from "../dom.ts";
import type { Lesson } from "../types.ts";
export function failureForm(_app: App, _lesson: Lesson): HTMLElement { return h("div", {}); }
