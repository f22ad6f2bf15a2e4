// Softmax with and without the maximum subtracted, and the point where the one without breaks.

import { naiveSoftmax, softmaxSteps } from "../attention.ts";
import { h } from "../dom.ts";
import { given, number } from "../numbers.ts";
import { frame, numbersTable, redraw, slider } from "./kit.ts";

const TYPES = { float64: Number.MAX_VALUE, float32: 3.4028234663852886e38, float16: 65504 };

export function overflow({ scores }: { scores: number[] }): HTMLElement {
  const f = frame(
    "Add the same number to every score",
    "Two ways to the same weights, side by side. The type says where numbers end: what is larger becomes inf. Only " +
      "that end of the type is played here; all else is computed in float64.",
  );
  const control = slider("Added", { min: 0, max: 1000, step: 1, value: 0 }, given, update);
  const type = h(
    "select",
    { id: "number-type", onchange: update },
    ...Object.keys(TYPES).map((name) => h("option", { value: name }, name)),
  );
  f.controls.append(
    control.element,
    h("div", { class: "field" }, h("label", { for: "number-type" }, "Number type"), type),
  );

  function update(): void {
    const end = TYPES[type.value as keyof typeof TYPES];
    const cut = (x: number) => (x > end ? Infinity : x);
    const shifted = scores.map((score) => score + control.value);
    const stable = softmaxSteps(shifted);
    const exponentials = naiveSoftmax(shifted).exponentials.map(cut);
    const sum = cut(exponentials.reduce((a, b) => a + b, 0));
    const naive = exponentials.map((exponential) => exponential / sum);
    const broken = naive.some((weight) => !Number.isFinite(weight)) || sum === Infinity;
    const column = (title: string, bad: boolean, rows: string[][]) =>
      h(
        "div",
        { class: bad ? "panel broken" : "panel" },
        h("p", { class: "panel-title" }, title),
        ...rows.map(([name, text]) => h("p", { class: "line" }, h("span", {}, name), h("b", {}, text))),
      );
    f.picture.replaceChildren(
      h(
        "div",
        { class: "two-panels" },
        column("exp(score) / sum", broken, [
          ...shifted.map((score, j) => [`exp(${given(score)})`, number(exponentials[j])]),
          ["sum", number(sum)],
          ...naive.map((weight, j) => [`weight ${j}`, number(weight)]),
        ]),
        column("exp(score − max) / sum", false, [
          ...stable.shiftedScores.map((score, j) => [
            `exp(${given(score!)})`.replace("(-", "(−"),
            number(stable.exponentials[j]),
          ]),
          ["sum", number(stable.sum)],
          ...stable.weights.map((weight, j) => [`weight ${j}`, number(weight)]),
        ]),
      ),
    );
    redraw(
      f.table,
      numbersTable(
        "Every number of the figure",
        ["", "score", "exp(score)", "weight without", "score − max", "exp", "weight with"],
        shifted.map((score, j) => [
          `key ${j}`,
          given(score),
          number(exponentials[j]),
          number(naive[j]),
          given(stable.shiftedScores[j]!),
          number(stable.exponentials[j]),
          number(stable.weights[j]),
        ]),
      ),
    );
    const limit = Math.log(end);
    f.say(
      broken
        ? `Without the subtraction ${type.value} overflows: exp of anything above ${limit.toFixed(2)} is inf, and the ` +
            `weights are ${naive.map(number).join(" and ")}. With it they are still ` +
            `${stable.weights.map(number).join(" and ")}.`
        : `Both ways give ${stable.weights.map(number).join(" and ")}. ${type.value} holds exp up to a score of ` +
            `${limit.toFixed(2)}.`,
    );
  }
  update();
  return f.figure;
}
