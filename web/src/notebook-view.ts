import type { App, View } from "./app.ts";
import { h } from "./dom.ts";
export function notebookView(_app: App): View { return { title: "My notebook", element: h("div", {}) }; }
