// What all figures are made of: a frame, sliders, bars, a table of the numbers, and a sentence for those who listen.

import { h, later, put, s, unique } from "../dom.ts";
import { typeset } from "../numbers.ts";

export interface Frame {
  figure: HTMLElement;
  picture: HTMLElement;
  controls: HTMLElement;
  table: HTMLElement;
  /** The result in one sentence: shown under the picture, read out when it has settled. */
  say(sentence: string): void;
}

/** `reads` says in words what the rows, columns, lengths and shades of the picture mean. */
export function frame(title: string, reads: string): Frame {
  const id = unique("figure");
  const picture = h("div", { class: "picture" });
  const controls = h("div", { class: "controls" });
  const table = h("div", { class: "numbers" });
  const shown = h("p", { class: "says" });
  const spoken = h("p", { class: "unseen", role: "status" });
  let first = true;
  const speak = later(() => (spoken.textContent = shown.textContent), 400);
  const figure = h(
    "div",
    { class: "figure", role: "group", "aria-labelledby": id },
    h("p", { class: "figure-title", id }, title),
    picture,
    controls,
    shown,
    spoken,
    table,
    h("p", { class: "reads" }, reads),
  );
  const say = (sentence: string) => {
    shown.textContent = typeset(sentence);
    if (!first) speak();
    first = false;
  };
  return { figure, picture, controls, table, say };
}

export interface Slider {
  element: HTMLElement;
  value: number;
}

export function slider(
  label: string,
  range: { min: number; max: number; step: number; value: number },
  write: (value: number) => string,
  changed: () => void,
): Slider {
  const id = unique("slider");
  const output = h("output", { for: id }, typeset(write(range.value)));
  const input = h("input", { type: "range", id, ...range, "aria-valuetext": write(range.value) });
  input.value = String(range.value);
  const control: Slider = {
    element: h("div", { class: "slider" }, h("label", { for: id }, label), input, output),
    get value() {
      return Number(input.value);
    },
    set value(x: number) {
      input.value = String(x);
      tell();
    },
  };
  const tell = () => {
    output.textContent = typeset(write(control.value));
    input.setAttribute("aria-valuetext", write(control.value));
  };
  input.addEventListener("input", () => {
    tell();
    changed();
  });
  return control;
}

export function button(label: string, action: () => void, kind = "quiet"): HTMLButtonElement {
  return h("button", { type: "button", class: kind, onclick: action }, label);
}

/** One bar: a name, a length between 0 and 1, a number. `tone` picks the colour; colour never says anything alone. */
export interface Bar {
  name: string;
  length: number;
  text: string;
  tone?: number;
  off?: boolean;
}

export function bars(label: string, rows: Bar[]): HTMLElement {
  return h(
    "div",
    { class: "bars", role: "img", "aria-label": `${label}: ${rows.map((row) => `${row.name} ${row.text}`).join(", ")}` },
    h("div", { class: "bars-title", "aria-hidden": "true" }, label),
    ...rows.map((row) => {
      const inner = h("div", { class: `bar tone-${row.tone ?? 0}` });
      inner.style.inlineSize = `${Math.max(0, Math.min(1, row.length)) * 100}%`;
      return h(
        "div",
        { class: row.off ? "bar-row off" : "bar-row", "aria-hidden": "true" },
        h("span", { class: "bar-name" }, row.name),
        h("div", { class: "track" }, row.length > 0 ? inner : null),
        h("span", { class: "bar-number" }, typeset(row.text)),
      );
    }),
  );
}

export type Cell = string | Node;

/** A table of numbers; the first cell of a row is its name. It scrolls by itself where the page is narrow. */
export function numbersTable(caption: string, head: string[], rows: Cell[][]): HTMLElement {
  const cell = (content: Cell, j: number) => {
    const inside = typeof content === "string" ? typeset(content) : content;
    return j === 0 ? h("th", { scope: "row" }, inside) : h("td", {}, inside);
  };
  return h(
    "div",
    { class: "scrolls", tabindex: "0", role: "group", "aria-label": `${caption}, table` },
    h(
      "table",
      {},
      h("caption", {}, caption),
      h("thead", {}, h("tr", {}, ...head.map((title) => (title ? h("th", { scope: "col" }, title) : h("td", {}))))),
      h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map(cell)))),
    ),
  );
}

/** Replaces the table but keeps the focus where it was, so that typing into a cell goes on. */
export function redraw(place: HTMLElement, content: Node): void {
  const active = place.contains(document.activeElement) ? document.activeElement : null;
  const scrolled = place.firstElementChild?.scrollLeft ?? 0;
  put(place, content);
  if (place.firstElementChild) place.firstElementChild.scrollLeft = scrolled;
  if (active instanceof HTMLElement && active.dataset.cell) {
    place.querySelector<HTMLElement>(`[data-cell="${active.dataset.cell}"]`)?.focus();
  } else if (active) {
    place.querySelector<HTMLElement>(".scrolls")?.focus();
  }
}

// The plane --------------------------------------------------------------------------------------------------------

export interface Point {
  name: string;
  at: [number, number];
  tone: number;
  /** An arrow from the origin, or a dot. */
  arrow: boolean;
  /** Points that cannot be moved are drawn and not focusable. */
  fixed?: boolean;
  /** A ring that leaves what lies under it visible. */
  ring?: boolean;
}

export interface Plane {
  element: SVGElement;
  draw(): void;
}

const SIDE = 320;

/** A square of the plane from -reach to reach with points that pointer and arrow keys move. */
export function plane(label: string, reach: number, points: Point[], moved: () => void): Plane {
  const unit = SIDE / 2 / (reach * 1.08);
  const x = (value: number) => SIDE / 2 + value * unit;
  const y = (value: number) => SIDE / 2 - value * unit;
  const step = reach / 20;
  const marker = unique("arrow");
  const lines: SVGElement[] = [];
  for (let at = -reach; at <= reach; at += reach / 2) {
    const kind = at === 0 ? "axis" : "grid";
    lines.push(s("line", { class: kind, x1: x(at), x2: x(at), y1: y(-reach), y2: y(reach) }));
    lines.push(s("line", { class: kind, x1: x(-reach), x2: x(reach), y1: y(at), y2: y(at) }));
    if (at > 0) {
      lines.push(s("text", { class: "tick", x: x(at), y: y(0) + 14, "text-anchor": "middle" }, String(at)));
      lines.push(s("text", { class: "tick", x: x(0) - 11, y: y(at) + 4, "text-anchor": "end" }, String(at)));
    }
  }
  const svg = s(
    "svg",
    { viewBox: `0 0 ${SIDE} ${SIDE}`, class: "plane", role: "group", "aria-label": label },
    s("g", { "aria-hidden": "true" }, ...lines),
  );
  const heads = s("defs");
  svg.prepend(heads);
  for (let tone = 0; tone < 5; tone++) {
    heads.append(
      s(
        "marker",
        { id: `${marker}-${tone}`, viewBox: "0 0 10 10", refX: 8, refY: 5, markerWidth: 4.5, markerHeight: 4.5, orient: "auto" },
        s("path", { class: `fill-${tone}`, d: "M0 1 L9 5 L0 9 z" }),
      ),
    );
  }
  const clamp = (value: number) => Math.max(-reach, Math.min(reach, Math.round(value / step) * step));
  const tidy = (value: number) => Number(clamp(value).toFixed(6));

  const handles = points.map((point) => {
    const line = s("line", { class: `vector stroke-${point.tone}`, "marker-end": `url(#${marker}-${point.tone})` });
    const dot = s("circle", { class: `fill-${point.tone}`, r: point.arrow ? 4 : 7 });
    const ring = s("circle", { class: "ring", r: 15 });
    const name = s("text", { class: "point-name" }, point.name);
    const group = s(
      "g",
      {
        class: `handle${point.fixed ? " fixed" : ""}${point.ring ? " hollow" : ""}`,
        ...(point.fixed
          ? { "aria-hidden": "true" }
          : { tabindex: 0, role: "slider", "aria-label": point.name, "aria-valuemin": -reach, "aria-valuemax": reach }),
      },
      point.arrow ? line : null,
      ring,
      dot,
      name,
    );
    const set = (u: number, v: number) => {
      point.at = [tidy(u), tidy(v)];
      draw();
      moved();
    };
    if (!point.fixed) {
      group.addEventListener("keydown", (event) => {
        const jump = event.shiftKey ? step * 5 : step;
        const by = { ArrowLeft: [-jump, 0], ArrowRight: [jump, 0], ArrowUp: [0, jump], ArrowDown: [0, -jump] }[event.key];
        if (!by) return;
        event.preventDefault();
        set(point.at[0] + by[0], point.at[1] + by[1]);
      });
      group.addEventListener("pointerdown", (event) => {
        group.setPointerCapture(event.pointerId);
        group.focus();
        event.preventDefault();
      });
      group.addEventListener("pointermove", (event) => {
        if (!group.hasPointerCapture(event.pointerId)) return;
        const box = svg.getBoundingClientRect();
        const px = ((event.clientX - box.left) / box.width) * SIDE;
        const py = ((event.clientY - box.top) / box.height) * SIDE;
        set((px - SIDE / 2) / unit, (SIDE / 2 - py) / unit);
      });
    }
    svg.append(group);
    return { point, group, line, dot, ring, name };
  });

  function draw(): void {
    for (const { point, group, line, dot, ring, name } of handles) {
      const [px, py] = [x(point.at[0]), y(point.at[1])];
      line.setAttribute("x1", String(x(0)));
      line.setAttribute("y1", String(y(0)));
      line.setAttribute("x2", String(px));
      line.setAttribute("y2", String(py));
      for (const circle of [dot, ring]) {
        circle.setAttribute("cx", String(px));
        circle.setAttribute("cy", String(py));
      }
      // Names keep inside of the square, and that of a ring off those of the dots.
      const right = point.at[0] > reach * 0.75;
      const below = point.ring || point.at[1] < 0;
      name.setAttribute("x", String(px + (right ? -12 : 10)));
      name.setAttribute("text-anchor", right ? "end" : "start");
      name.setAttribute("y", String(py + (point.ring ? 26 : below ? 18 : -10)));
      if (!point.fixed) {
        const [u, v] = point.at;
        group.setAttribute("aria-valuenow", String(u));
        group.setAttribute("aria-valuetext", `x ${u}, y ${v}`);
      }
    }
  }
  draw();
  return { element: svg, draw };
}

/** An input for one coordinate in a table, so that a number can be typed as well as dragged. */
export function coordinate(label: string, key: string, value: number, reach: number, set: (x: number) => void): Node {
  const input = h("input", {
    type: "number",
    class: "coordinate",
    "aria-label": label,
    "data-cell": key,
    step: reach / 20,
    min: -reach,
    max: reach,
    value,
  });
  input.addEventListener("change", () => {
    const x = Number(input.value);
    if (input.value !== "" && Number.isFinite(x)) set(Math.max(-reach, Math.min(reach, x)));
    else input.value = String(value);
  });
  return input;
}
