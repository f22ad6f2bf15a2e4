import type { App, View } from "../app.ts";
import { h } from "../dom.ts";
import type { Lesson } from "../types.ts";
export function labView(_app: App, _lesson: Lesson): View { return { title: "Lab", element: h("div", {}) }; }
