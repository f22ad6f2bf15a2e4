// The learner's function on a trained head: it has to give what the model gave, and the picture shows what was read.

import type { App } from "../app.ts";
import { json } from "../app.ts";
import { shares } from "../attention.ts";
import { h, put, unique } from "../dom.ts";
import { number } from "../numbers.ts";
import { stopSentence } from "./report.ts";
import { pythonOf } from "./shared.ts";

interface HeadRow {
  query_index: number;
  allowed_count: number;
  query: number[];
  output: number[];
  bound: number[];
}

interface Head {
  model: string;
  licence: string;
  title: string;
  author: string;
  year: number;
  tokens: string[];
  layer: number;
  head: number;
  keys: number[][];
  values: number[][];
  default: number;
  rows: HeadRow[];
}

export function realHead(app: App, code: () => string): HTMLElement {
  const result = h("div", {});
  const state = h("p", { class: "state", role: "status" });
  const button = h("button", { type: "button", class: "solid" }, "Run my attend on a real head");
  button.addEventListener("click", async () => {
    button.disabled = true;
    state.textContent = "Running your function on the recorded rows…";
    await app.trying(async () => {
      const head: Head = await json("api/head.json");
      const problems = head.rows.map((row) => [
        row.query,
        head.keys,
        head.values,
        head.keys.map((_, j) => j < row.allowed_count),
      ]);
      const ended = await pythonOf(app).task({ type: "rows", source: code(), problems: JSON.stringify(problems) });
      if (ended.kind === "stopped") state.textContent = stopSentence(ended, false);
      else if (ended.result.outcome) state.textContent = `Your file could not be loaded: ${ended.result.outcome.message}`;
      else {
        state.textContent = "";
        put(result, verdictView(head, ended.result.outcomes));
      }
    });
    button.disabled = false;
  });
  return h(
    "section",
    { class: "lab-part", "aria-labelledby": "real-head-title" },
    h("h2", { id: "real-head-title" }, "On a real head"),
    h(
      "p",
      {},
      "Rows of a trained head were recorded while the model read a page. Your function gets the same queries, keys and " +
        "values, with a causal mask, and has to give what the model gave.",
    ),
    h("div", { class: "buttons" }, button, state),
    result,
  );
}

interface Result {
  weights: number[];
  context: number[];
  /** The largest error and the bound that it has to keep, at the coordinate that comes closest to it. */
  error: number;
  bound: number;
  holds: boolean;
}

function judged(row: HeadRow, outcome: any): Result | null {
  const [weights, context] = Array.isArray(outcome?.value) ? outcome.value : [];
  if (!Array.isArray(context) || context.length !== row.output.length || !Array.isArray(weights)) return null;
  const errors = row.output.map((o, e) => Math.abs(context[e] - o));
  const worst = errors.reduce((best, error, e) => (error / row.bound[e] > errors[best] / row.bound[best] ? e : best), 0);
  return {
    weights,
    context,
    error: errors[worst],
    bound: row.bound[worst],
    holds: errors.every((error, e) => error <= row.bound[e]),
  };
}

function verdictView(head: Head, outcomes: any[]): HTMLElement {
  const results = head.rows.map((row, i) => judged(row, outcomes[i]));
  const all = results.every((result) => result?.holds);
  const place = h("div", {});
  const id = unique("row");
  const choice = h(
    "select",
    { id, onchange: () => put(place, rowView(head, head.rows[Number(choice.value)], results[Number(choice.value)])) },
    ...head.rows.map((row, i) =>
      h(
        "option",
        { value: i, selected: i === head.default },
        `token ${row.query_index} “${glyphs(head.tokens[row.query_index])}”, after “${words(head, row.query_index)}”`,
      ),
    ),
  );
  put(place, rowView(head, head.rows[head.default], results[head.default]));
  return h(
    "div",
    { class: "real-head" },
    h(
      "p",
      { class: all ? "banner good" : "banner bad" },
      h("b", {}, all ? "Your attend reproduces the model." : "Your attend does not reproduce the model."),
      ` ${results.filter((result) => result?.holds).length} of ${results.length} rows agree with what ${head.model} ` +
        `computed in layer ${head.layer}, head ${head.head}, within float error.`,
    ),
    h("div", { class: "field" }, h("label", { for: id }, "Which token asks"), choice),
    place,
  );
}

function rowView(head: Head, row: HeadRow, result: Result | null): HTMLElement {
  if (!result) return h("p", { class: "trouble" }, "Your function gave no weights and context for this row.");
  const weights = result.weights.slice(0, row.allowed_count);
  const share = shares(weights, head.values.slice(0, row.allowed_count), row.output);
  const order = weights.map((_, j) => j).sort((a, b) => weights[b] - weights[a] || a - b);
  const heaviest = weights[order[0]] || 1;
  const text = h("p", { class: "head-text", "aria-hidden": "true" });
  for (let i = 0; i <= row.query_index; i++) {
    const token = h("span", { class: i === row.query_index ? "token asks" : "token", title: `token ${i}: ${number(weights[i])}` });
    token.textContent = head.tokens[i].replace(/\n+/g, " ↵ ");
    token.style.setProperty("--weight", String(Math.round((100 * weights[i]) / heaviest)));
    text.append(token);
  }
  const top = order.slice(0, 8);
  return h(
    "div",
    {},
    h(
      "p",
      { class: "hint" },
      `Largest difference from the model: ${result.error.toExponential(1)}; float32 rounding can explain ` +
        `${result.bound.toExponential(1)} there. Framed: the token that asks. Shade: the weight, from 0 to ` +
        `${number(heaviest)}; tokens after it cannot be read and are left out.`,
    ),
    text,
    h(
      "div",
      { class: "scrolls", tabindex: "0", role: "group", "aria-label": "What the head read most, table" },
      h(
        "table",
        {},
        h("caption", {}, "What it read most"),
        h("thead", {}, h("tr", {}, ...["token", "before it", "weight", "share of the output"].map((t) => h("th", { scope: "col" }, t)))),
        h(
          "tbody",
          {},
          ...top.map((j) =>
            h(
              "tr",
              {},
              h("th", { scope: "row" }, `${j} “${glyphs(head.tokens[j])}”`),
              h("td", {}, j ? glyphs(head.tokens[j - 1]) : ""),
              h("td", {}, number(weights[j])),
              h("td", {}, number(share[j]).replace("-", "−")),
            ),
          ),
        ),
      ),
    ),
    h("p", { class: "hint" }, `${head.model} (${head.licence}) reading ${head.title}, ${head.author}, ${head.year}.`),
  );
}

function glyphs(token: string): string {
  return token.replace(/^ /, "·").replace(/\n/g, "↵") || "∅";
}

function words(head: Head, index: number): string {
  return head.tokens.slice(Math.max(0, index - 5), index).join("").replace(/\s+/g, " ").trim();
}
