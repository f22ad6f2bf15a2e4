// Query and keys in one plane, values and the output in another: drag one and everything that depends on it moves.

import { attentionSteps, type Vector } from "../attention.ts";
import { given, number, vector } from "../numbers.ts";
import type { Example } from "../trace.ts";
import { bars, coordinate, frame, numbersTable, plane, redraw, type Point } from "./kit.ts";

interface Options {
  query: Vector;
  keys: Vector[];
  values: Vector[];
}

const KEY_REACH = 2;

export function vectors(options: Options, openTrace: (example: Example) => void): HTMLElement {
  const f = frame(
    "Move the query, a key or a value",
    "Left: the query and the keys as arrows. Right: the values and, as a ring, the output. A bar is as long as its " +
      "weight, from 0 to 1. Every arrow and dot moves with the pointer, or with the arrow keys (Shift: five steps).",
  );
  const largest = Math.max(...options.values.flat().map(Math.abs));
  const valueReach = [1, 2, 4, 10, 20, 40, 100].find((reach) => reach >= largest) ?? largest;
  const name = (kind: string, j: number) => `${kind} ${j}`;
  const query: Point = { name: "query", at: pair(options.query), tone: 0, arrow: true };
  const keys = options.keys.map((key, j): Point => ({ name: name("key", j), at: pair(key), tone: j + 1, arrow: true }));
  const values = options.values.map(
    (value, j): Point => ({ name: name("value", j), at: pair(value), tone: j + 1, arrow: false }),
  );
  const output: Point = { name: "output", at: [0, 0], tone: 4, arrow: false, fixed: true, ring: true };

  const left = plane("Plane of query and keys", KEY_REACH, [...keys, query], update);
  const right = plane("Plane of values and output", valueReach, [...values, output], update);
  const shown = document.createElement("div");
  f.picture.classList.add("two-planes");
  f.picture.append(titled("Query and keys", left.element), titled("Values and output", right.element), shown);

  const start = { query: query.at, keys: keys.map((key) => key.at), values: values.map((value) => value.at) };
  const reset = document.createElement("button");
  reset.type = "button";
  reset.className = "quiet";
  reset.textContent = "Put everything back";
  reset.addEventListener("click", () => {
    query.at = start.query;
    for (const [j, key] of keys.entries()) key.at = start.keys[j];
    for (const [j, value] of values.entries()) value.at = start.values[j];
    update();
  });
  const example = (): Example => ({
    query: query.at,
    keys: keys.map((key) => key.at),
    values: values.map((value) => value.at),
    mask: keys.map(() => true),
  });
  const trace = document.createElement("button");
  trace.type = "button";
  trace.className = "quiet";
  trace.textContent = "Trace these numbers";
  trace.addEventListener("click", () => openTrace(example()));
  f.controls.append(trace, reset);

  function inputs(point: Point, reach: number): Node {
    const pairOf = document.createElement("span");
    pairOf.className = "pair";
    for (const axis of [0, 1] as const) {
      pairOf.append(
        coordinate(`${point.name}, ${"xy"[axis]}`, `${point.name}-${axis}`, point.at[axis], reach, (x) => {
          point.at = axis === 0 ? [x, point.at[1]] : [point.at[0], x];
          update();
        }),
      );
    }
    return pairOf;
  }

  function update(): void {
    const { mask, ...rest } = example();
    const t = attentionSteps(rest.query, rest.keys, rest.values, mask);
    output.at = [t.context[0], t.context[1]];
    left.draw();
    right.draw();
    shown.replaceChildren(
      bars(
        "Weights",
        keys.map((key, j) => ({ name: key.name, length: t.weights[j], text: number(t.weights[j]), tone: j + 1 })),
      ),
    );
    redraw(
      f.table,
      numbersTable(
        "Every number of the figure",
        ["", "x, y", "q · k", "÷ √2", "weight", "value x, y", "weight · value"],
        [
          ["query", inputs(query, KEY_REACH), "", "", "", "", ""],
          ...keys.map((key, j) => [
            key.name,
            inputs(key, KEY_REACH),
            number(t.dotProducts[j]),
            number(t.scaledScores[j]),
            number(t.weights[j]),
            inputs(values[j], valueReach),
            vector(t.contributions[j]),
          ]),
          ["output", "", "", "", "", "", vector(t.context)],
        ],
      ),
    );
    const most = t.weights.indexOf(Math.max(...t.weights));
    f.say(
      `The query ${vector(rest.query, given)} reads key ${most} most, with weight ${number(t.weights[most])}; ` +
        `the output is ${vector(t.context)}.`,
    );
  }
  update();
  return f.figure;
}

function pair(numbers: Vector): [number, number] {
  return [numbers[0], numbers[1]];
}

function titled(title: string, picture: Element): HTMLElement {
  const box = document.createElement("div");
  const text = document.createElement("p");
  text.className = "panel-title";
  text.textContent = title;
  box.append(text, picture);
  return box;
}
