// Two heads read the same hidden states through projections of their own.

import { attentionSteps, causal, dot, type Vector } from "../attention.ts";
import { h } from "../dom.ts";
import { given, number, vector } from "../numbers.ts";
import { bars, frame, numbersTable, redraw, slider } from "./kit.ts";

interface Options {
  tokens: string[];
  states: Vector[];
  /** One name and three projections per head. */
  names: string[];
  query: Vector[][];
  key: Vector[][];
  value: Vector[][];
}

export function heads({ tokens, states, names, ...projections }: Options): HTMLElement {
  const f = frame(
    "Two heads, the same tokens",
    "One panel per head, one row per token; a bar is as long as the weight, from 0 to 1. Tokens after the one that " +
      "asks are masked and have no bar.",
  );
  const asks = slider(
    "Token that asks",
    { min: 0, max: tokens.length - 1, step: 1, value: tokens.length - 1 },
    (i) => `${i} “${tokens[i]}”`,
    update,
  );
  f.controls.append(asks.element);

  function update(): void {
    const i = asks.value;
    const mask = causal(tokens.length)[i];
    const results = names.map((_, n) => {
      const query = project(projections.query[n], states[i]);
      const keys = states.map((state) => project(projections.key[n], state));
      const values = states.map((state) => project(projections.value[n], state));
      return attentionSteps(query, keys, values, mask);
    });
    f.picture.replaceChildren(
      h(
        "div",
        { class: "two-panels" },
        ...results.map((t, n) =>
          h(
            "div",
            { class: "panel" },
            bars(
              names[n],
              tokens.map((token, j) => ({
                name: token,
                length: t.weights[j],
                text: mask[j] ? number(t.weights[j]) : "masked",
                tone: n === 0 ? 0 : 2,
                off: !mask[j],
              })),
            ),
            h("p", { class: "line" }, h("span", {}, "output"), h("b", {}, vector(t.context))),
          ),
        ),
      ),
    );
    redraw(
      f.table,
      numbersTable(
        "Every number of the figure",
        ["", "hidden state", ...names.flatMap((_, n) => [`score, head ${n}`, `weight, head ${n}`])],
        [
          ...tokens.map((token, j) => [
            token,
            vector(states[j], given),
            ...results.flatMap((t) => [mask[j] ? number(t.scaledScores[j]) : "masked", number(t.weights[j])]),
          ]),
          ["output", "", ...results.flatMap((t) => ["", vector(t.context)])],
        ],
      ),
    );
    const most = results.map((t) => tokens[t.weights.indexOf(Math.max(...t.weights))]);
    f.say(
      `Asked by “${tokens[i]}”, ${results.map((_, n) => `head ${n} reads “${most[n]}” most`).join(" and ")}. ` +
        `Side by side their outputs are ${vector(results.flatMap((t) => t.context))}.`,
    );
  }
  update();
  return f.figure;
}

function project(matrix: Vector[], state: Vector): Vector {
  return matrix.map((row) => dot(row, state));
}
