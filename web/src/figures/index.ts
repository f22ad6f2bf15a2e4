// The figures a lesson can name.

import { h } from "../dom.ts";
import type { Example } from "../trace.ts";
import { contribution } from "./contribution.ts";
import { heads } from "./heads.ts";
import { masks } from "./masks.ts";
import { overflow } from "./overflow.ts";
import { sameoutput } from "./sameoutput.ts";
import { sharpness } from "./sharpness.ts";
import { vectors } from "./vectors.ts";

type Draw = (options: any, openTrace: (example: Example) => void) => HTMLElement;

const FIGURES: Record<string, Draw> = {
  vectors,
  sharpness,
  overflow,
  masks,
  heads,
  "same-output": sameoutput,
  contribution,
};

export function drawFigure(place: HTMLElement, openTrace: (example: Example) => void): void {
  const stage = place.querySelector(".stage") ?? place;
  const draw = FIGURES[place.dataset.figure ?? ""];
  try {
    if (!draw) throw new Error(`there is no figure “${place.dataset.figure}”`);
    stage.replaceChildren(draw(JSON.parse(place.dataset.options || "{}"), openTrace));
  } catch (error) {
    stage.replaceChildren(h("p", { class: "trouble" }, `This figure cannot be drawn: ${error}`));
  }
}
