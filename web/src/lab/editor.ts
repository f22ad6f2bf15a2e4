// The editor: CodeMirror 6 in a shadow root of its own, where it can keep its style sheet under a strict policy.

import { autocompletion, closeBrackets, closeBracketsKeymap } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { python } from "@codemirror/lang-python";
import { bracketMatching, HighlightStyle, indentOnInput, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { EditorState, Prec } from "@codemirror/state";
import { drawSelection, EditorView, highlightActiveLine, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";

const LOOK = EditorView.theme({
  "&": { fontSize: "0.9rem", backgroundColor: "var(--raised)", color: "var(--ink)", height: "100%" },
  "&.cm-focused": { outline: "3px solid var(--accent)", outlineOffset: "1px" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.55", overflow: "auto" },
  ".cm-content": { caretColor: "var(--ink)", padding: "0.8rem 0" },
  ".cm-line": { padding: "0 1rem 0 0.5rem" },
  ".cm-cursor, .cm-dropCursor": { borderLeftColor: "var(--ink)" },
  ".cm-gutters": { backgroundColor: "var(--raised)", color: "var(--soft)", border: "none", paddingLeft: "0.4rem" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "var(--mark)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": {
    backgroundColor: "light-dark(#c9d8f8, #2c426f) !important",
  },
  ".cm-matchingBracket": { backgroundColor: "light-dark(#d5e6d9, #24452f) !important", color: "inherit" },
});

const COLOURS = HighlightStyle.define([
  { tag: [tags.keyword, tags.operatorKeyword], color: "light-dark(#7b2d9e, #d79bf0)" },
  { tag: [tags.string, tags.special(tags.string)], color: "light-dark(#1a7043, #7fd6a6)" },
  { tag: [tags.number, tags.bool, tags.null], color: "light-dark(#a03c00, #f2b27a)" },
  { tag: [tags.comment, tags.docString], color: "var(--soft)", fontStyle: "italic" },
  { tag: [tags.function(tags.variableName), tags.definition(tags.function(tags.variableName))], color: "light-dark(#1f4fb0, #8fb3ff)" },
]);

export interface Editor {
  element: HTMLElement;
  text(): string;
  set(text: string): void;
  focus(): void;
  /** Puts the cursor on a line, counted from 1. */
  line(number: number): void;
}

export interface EditorEvents {
  changed(text: string): void;
  focused(): void;
  grade(): void;
  run(): void;
  /** Esc was pressed: Tab leaves now. */
  leaving(on: boolean): void;
}

export function editor(text: string, label: string, describedBy: string, events: EditorEvents): Editor {
  const host = document.createElement("div");
  host.className = "editor";
  const root = host.attachShadow({ mode: "open" });
  const place = document.createElement("div");
  place.style.height = "100%";
  root.append(place);

  let leaving = false;
  const leave = (view: EditorView, on: boolean) => {
    if (leaving === on) return;
    leaving = on;
    view.setTabFocusMode(on);
    events.leaving(on);
  };
  const view: EditorView = new EditorView({
    parent: place,
    root,
    state: EditorState.create({
      doc: text,
      extensions: [
        lineNumbers(),
        history(),
        drawSelection(),
        indentOnInput(),
        indentUnit.of("    "),
        bracketMatching(),
        closeBrackets(),
        autocompletion({ activateOnTyping: false }),
        highlightActiveLine(),
        python(),
        LOOK,
        syntaxHighlighting(COLOURS),
        Prec.highest(
          keymap.of([
            { key: "Mod-Enter", run: () => (events.grade(), true) },
            { key: "Shift-Enter", run: () => (events.run(), true) },
          ]),
        ),
        keymap.of([...closeBracketsKeymap, ...defaultKeymap, ...historyKeymap, indentWithTab]),
        EditorView.contentAttributes.of({ "aria-label": label, "aria-description": describedBy, spellcheck: "false", tabindex: "0" }),
        EditorView.updateListener.of((update) => {
          if (update.docChanged) events.changed(update.state.doc.toString());
        }),
        EditorView.domEventHandlers({
          focus: () => events.focused(),
          blur: (_, current) => leave(current, false),
          keydown: (event, current) => {
            if (event.key === "Escape") leave(current, true);
            else if (event.key !== "Tab" && event.key !== "Shift") leave(current, false);
          },
        }),
      ],
    }),
  });
  return {
    element: host,
    text: () => view.state.doc.toString(),
    set: (replacement) => view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: replacement } }),
    focus: () => view.focus(),
    line: (number) => {
      const line = view.state.doc.line(Math.max(1, Math.min(number, view.state.doc.lines)));
      view.dispatch({ selection: { anchor: line.from + (line.text.match(/^\s*/)?.[0].length ?? 0) }, scrollIntoView: true });
      view.focus();
    },
  };
}
