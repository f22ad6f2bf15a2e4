// Different weights, same output: values on a line leave the weights a direction that the output cannot see.

import { mixture, type Vector } from "../attention.ts";
import { given, number, vector } from "../numbers.ts";
import { bars, frame, numbersTable, plane, redraw, slider, type Point } from "./kit.ts";

interface Options {
  /** Three values, the middle one half way between the others. */
  values: Vector[];
}

export function sameoutput({ values }: Options): HTMLElement {
  const f = frame(
    "Move the weights; the output stays",
    "Left: the three values as dots and the output as a ring. Right: a bar is as long as its weight, from 0 to 1.",
  );
  const reach = 2 ** Math.ceil(Math.log2(Math.max(...values.flat().map(Math.abs))));
  const points = values.map(
    (value, j): Point => ({ name: `value ${j}`, at: [value[0], value[1]], tone: j + 1, arrow: false, fixed: true }),
  );
  const output: Point = { name: "output", at: [0, 0], tone: 4, arrow: false, fixed: true, ring: true };
  const picture = plane("Three values on a line, and the output", reach, [...points, output], () => undefined);
  const right = document.createElement("div");
  f.picture.classList.add("plane-and-bars");
  f.picture.append(picture.element, right);
  const control = slider(
    "Weight of the middle key",
    { min: 0.02, max: 0.98, step: 0.02, value: 0.5 },
    (x) => x.toFixed(2),
    update,
  );
  f.controls.append(control.element);

  function update(): void {
    const middle = control.value;
    const weights = [(1 - middle) / 2, middle, (1 - middle) / 2];
    const context = values[0].map((_, e) => mixture(weights, values.map((value) => value[e])));
    output.at = [context[0], context[1]];
    picture.draw();
    right.replaceChildren(
      bars(
        "Weights",
        weights.map((weight, j) => ({ name: `key ${j}`, length: weight, text: number(weight), tone: j + 1 })),
      ),
    );
    redraw(
      f.table,
      numbersTable(
        "Every number of the figure",
        ["", "score that gives it", "weight", "value", "weight · value"],
        [
          ...weights.map((weight, j) => [
            `key ${j}`,
            number(Math.log(weight)),
            number(weight),
            vector(values[j], given),
            vector(values[j].map((x) => weight * x)),
          ]),
          ["output", "", "1.000", "", vector(context)],
        ],
      ),
    );
    f.say(`With ${weights.map((weight) => weight.toFixed(2)).join(", ")} the output is ${vector(context)}.`);
  }
  update();
  return f.figure;
}
