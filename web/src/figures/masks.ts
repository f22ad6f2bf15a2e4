// A mask to paint: rules that are combined, cells that are switched one by one, and the first row that reads nothing.

import { both, causal, firstEmptyRow, padding, window as windowMask, type Mask } from "../attention.ts";
import { h } from "../dom.ts";
import { number } from "../numbers.ts";
import { button, frame, numbersTable, redraw, slider } from "./kit.ts";

export function masks({ length = 6 }: { length?: number }): HTMLElement {
  const f = frame(
    "Who may read whom",
    "Rows are queries, from the first position to the last; columns are keys. A filled square with a dot: the query " +
      "may read the key. The diagonal belongs to a causal mask: position i reads position i. Arrow keys move between " +
      "squares, Space switches one.",
  );
  let mask: Mask = causal(length);
  let at: [number, number] = [0, 0];

  const rule = (label: string, checked: boolean) => {
    const input = h("input", { type: "checkbox", checked, onchange: apply });
    return { input, element: h("label", { class: "check" }, input, label) };
  };
  const isCausal = rule("Causal: no key after the query", true);
  const isWindow = rule("Window", false);
  const isPadded = rule("Padding", false);
  const before = slider("Keys before the query", { min: 0, max: length - 1, step: 1, value: 1 }, String, () => {
    isWindow.input.checked = true;
    apply();
  });
  const padded = slider("Padding keys at the start", { min: 0, max: length, step: 1, value: 2 }, String, () => {
    isPadded.input.checked = true;
    apply();
  });
  f.controls.classList.add("rules");
  f.controls.append(
    isCausal.element,
    h("div", { class: "rule" }, isWindow.element, before.element),
    h("div", { class: "rule" }, isPadded.element, padded.element),
    h(
      "div",
      {},
      button("Allow everything", () => {
        for (const { input } of [isCausal, isWindow, isPadded]) input.checked = false;
        apply();
      }),
    ),
  );

  const cells = Array.from({ length }, (_, i) =>
    Array.from({ length }, (_, j) =>
      h("button", {
        type: "button",
        class: "cell",
        onclick: () => toggle(i, j),
        onkeydown: (event: KeyboardEvent) => move(event, i, j),
      }),
    ),
  );
  const marks = Array.from({ length }, () => h("td", { class: "row-mark" }));
  f.picture.append(
    h("p", { class: "axis-name" }, "keys →"),
    h(
      "table",
      { class: "mask", role: "grid", "aria-label": "Mask: rows are queries, columns are keys" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          h("th", { scope: "col", class: "corner" }, "query"),
          ...cells.map((_, j) => h("th", { scope: "col" }, String(j))),
          h("th", { scope: "col", class: "row-mark" }, "reads"),
        ),
      ),
      h(
        "tbody",
        {},
        ...cells.map((row, i) =>
          h("tr", {}, h("th", { scope: "row" }, String(i)), ...row.map((cell) => h("td", {}, cell)), marks[i]),
        ),
      ),
    ),
  );

  function apply(): void {
    mask = windowMask(length, length, length);
    if (isCausal.input.checked) mask = both(mask, causal(length));
    if (isWindow.input.checked) mask = both(mask, windowMask(length, before.value, length));
    if (isPadded.input.checked) mask = both(mask, padding(length, mask.map((_, j) => j >= padded.value)));
    update();
  }

  function toggle(i: number, j: number): void {
    mask[i][j] = !mask[i][j];
    at = [i, j];
    update();
  }

  function move(event: KeyboardEvent, i: number, j: number): void {
    const steps: Record<string, [number, number]> = {
      ArrowLeft: [i, j - 1],
      ArrowRight: [i, j + 1],
      ArrowUp: [i - 1, j],
      ArrowDown: [i + 1, j],
      Home: [i, 0],
      End: [i, length - 1],
    };
    const to = steps[event.key];
    if (!to) return;
    event.preventDefault();
    at = [clamp(to[0], length), clamp(to[1], length)];
    update();
    cells[at[0]][at[1]].focus();
  }

  function update(): void {
    const empty = firstEmptyRow(mask);
    for (const [i, row] of cells.entries()) {
      const count = mask[i].filter(Boolean).length;
      for (const [j, cell] of row.entries()) {
        cell.setAttribute("aria-pressed", String(mask[i][j]));
        cell.setAttribute("aria-label", `query ${i}, key ${j}: ${mask[i][j] ? "may read" : "forbidden"}`);
        cell.tabIndex = i === at[0] && j === at[1] ? 0 : -1;
      }
      marks[i].textContent = count ? `${count}` : i === empty ? "none: first empty row" : "none";
      marks[i].classList.toggle("empty", count === 0);
    }
    redraw(
      f.table,
      numbersTable(
        "Every number of the figure (all scores equal)",
        ["", "reads keys", "weight of each", "weights add up to"],
        mask.map((row, i) => {
          const read = row.flatMap((may, j) => (may ? [j] : []));
          return [
            `query ${i}`,
            read.length ? read.join(", ") : "none",
            read.length ? number(1 / read.length) : "there is none",
            read.length ? "1.000" : "nothing",
          ];
        }),
      ),
    );
    const ahead = mask.findIndex((row, i) => row.some((may, j) => may && j > i));
    f.say(
      empty >= 0
        ? `Query ${empty} may read nothing. There is no distribution over nothing, so the lab refuses this row.`
        : ahead >= 0
          ? `Every query reads something, but query ${ahead} reads a later position: for a model that predicts the ` +
            "next token this is leakage."
          : "Every query reads something, and none reads a later position.",
    );
  }
  update();
  return f.figure;
}

function clamp(i: number, length: number): number {
  return Math.max(0, Math.min(length - 1, i));
}
