// Weight, share of the output and influence of each key: three questions, three answers.

import { influences, mixture, shares, softmaxSteps, type Vector } from "../attention.ts";
import { given, number, vector } from "../numbers.ts";
import { bars, frame, numbersTable, redraw, slider } from "./kit.ts";

interface Options {
  scores: Vector;
  values: Vector[];
  names: string[];
}

export function contribution({ scores, values, names }: Options): HTMLElement {
  const f = frame(
    "Weight, contribution, influence",
    "One row per key, the same keys in all three. Weight: how much of the value is mixed in, from 0 to 1. Share: how " +
      "far that goes along the output; all shares add up to 1. Influence: how far the output would move without this " +
      "key, in lengths of the output; the longest bar is the largest influence.",
  );
  const control = slider(
    `Length of the value of ${names[0]}`,
    { min: 0, max: 4, step: 0.05, value: Math.hypot(...values[0]) },
    (x) => x.toFixed(2),
    update,
  );
  f.controls.append(control.element);
  const length = Math.hypot(...values[0]);
  const direction = values[0].map((x) => x / length);

  function update(): void {
    const now = [direction.map((x) => Number((x * control.value).toFixed(6))), ...values.slice(1)];
    const mask = scores.map(() => true);
    const { weights } = softmaxSteps(scores);
    const output = now[0].map((_, e) => mixture(weights, now.map((value) => value[e])));
    const share = shares(weights, now, output);
    const moved = influences(scores, now, mask);
    const most = Math.max(...moved.filter(Number.isFinite), 1e-9);
    const panel = (title: string, numbers: number[], scale: number, tone: number) =>
      bars(
        title,
        numbers.map((x, j) => ({ name: names[j], length: Number.isFinite(x) ? Math.abs(x) / scale : 0, text: number(x), tone })),
      );
    f.picture.classList.add("three-bars");
    f.picture.replaceChildren(
      panel("Weight", weights, 1, 0),
      panel("Share", share, Math.max(1, ...share.map(Math.abs)), 2),
      panel("Influence", moved, most, 4),
    );
    redraw(
      f.table,
      numbersTable(
        "Every number of the figure",
        ["", "score", "weight", "value", "weight · value", "share", "influence"],
        [
          ...names.map((name, j) => [
            name,
            given(scores[j]),
            number(weights[j]),
            vector(now[j]),
            vector(now[j].map((x) => weights[j] * x)),
            number(share[j]),
            number(moved[j]),
          ]),
          ["output", "", "1.000", "", vector(output), "1.000", ""],
        ],
      ),
    );
    const top = (numbers: number[]) => names[numbers.indexOf(Math.max(...numbers))];
    f.say(
      `Largest weight: ${top(weights)}. Largest share: ${top(share)}. Largest influence: ${top(moved)}. ` +
        `${names[0]} has weight ${number(weights[0])}, share ${number(share[0])}, influence ${number(moved[0])}.`,
    );
  }
  update();
  return f.figure;
}
