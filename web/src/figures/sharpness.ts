// All scores multiplied by one number: from the plain mean to the largest alone.

import { mixture, softmaxSteps, type Vector } from "../attention.ts";
import { given, number, vector } from "../numbers.ts";
import { bars, frame, numbersTable, redraw, slider } from "./kit.ts";

interface Options {
  scores: Vector;
  values: Vector[];
}

export function sharpness({ scores, values }: Options): HTMLElement {
  const f = frame(
    "Multiply all scores by one number",
    "One row per key. Upper bars: its scaled score. Lower bars: its weight, from 0 to 1.",
  );
  // A power of two per step of one, so that flat and sharp have equal room.
  const range = { min: -6, max: 6, step: 0.25, value: 0 };
  const control = slider(
    "Factor",
    range,
    (x) => (x === range.min ? "× 0" : `× ${given(Number((2 ** x).toPrecision(3)))}`),
    update,
  );
  f.controls.append(control.element);

  function update(): void {
    const factor = control.value === range.min ? 0 : Number((2 ** control.value).toPrecision(3));
    const scaled = scores.map((score) => score * factor);
    const t = softmaxSteps(scaled);
    const output = values[0].map((_, e) => mixture(t.weights, values.map((value) => value[e])));
    const [low, high] = [Math.min(0, ...scaled), Math.max(0, ...scaled)];
    const evenness = Math.exp(-t.weights.reduce((sum, w) => sum + (w > 0 ? w * Math.log(w) : 0), 0));
    f.picture.replaceChildren(
      bars(
        "Scores times the factor",
        scaled.map((score, j) => ({
          name: `key ${j}`,
          length: high > low ? (score - low) / (high - low) : 0,
          text: number(score),
          tone: 4,
        })),
      ),
      bars(
        "Weights",
        t.weights.map((weight, j) => ({ name: `key ${j}`, length: weight, text: number(weight), tone: 0 })),
      ),
    );
    redraw(
      f.table,
      numbersTable(
        "Every number of the figure",
        ["", "score", "times factor", "exp(score − max)", "weight", "value"],
        [
          ...scores.map((score, j) => [
            `key ${j}`,
            given(score),
            number(scaled[j]),
            number(t.exponentials[j]),
            number(t.weights[j]),
            vector(values[j], given),
          ]),
          ["output", "", "", number(t.sum), "1.000", vector(output)],
        ],
      ),
    );
    f.say(
      `Factor ${given(factor)}: the weights are spread as evenly as over ${number(evenness)} of ${scores.length} keys, ` +
        `and the output is ${vector(output)}.`,
    );
  }
  update();
  return f.figure;
}
