// Two texts where there can be one: both are shown, and nothing is written until a person has chosen.

import { day, type App } from "./app.ts";
import type { Leftover } from "./backups.ts";
import { h, put } from "./dom.ts";

interface Sides {
  mine: () => string;
  /** What stands between the two where both are kept. */
  between: string;
  /** The person's choice; false where it could not be followed. */
  take: (text: string) => void | false;
}

/** Another tab saved a text while this one was typed. */
export function conflictChoice(theirs: string, { mine, between, take }: Sides): HTMLElement {
  return choice("Another tab saved a different text. Nothing is lost: choose.", theirs, [
    ["Keep both", () => take(both(mine(), between, theirs))],
    ["Keep mine", () => take(mine())],
    ["Take the other", () => take(theirs)],
  ]);
}

/** Offers, in `place`, what tabs that were closed left unsaved of one text, and what was replaced of it. */
export async function offerLeftovers(app: App, key: string, place: HTMLElement, { mine, between, take }: Sides): Promise<void> {
  const again = () => offerLeftovers(app, key, place, { mine, between, take });
  const [left] = await app.leftovers(key);
  const chosen = (text: string | null) => () => {
    // First written down for this tab, then forgotten for the other.
    if (text !== null && take(text) === false) return;
    app.forget(left);
    put(place);
    // What the notebook has until the next save is no news, and then it is.
    void app.texts.settled().then(again);
  };
  if (!left) put(place);
  else {
    put(
      place,
      choice(leftoverSentence(left), left.text, [
        ["Keep both", () => chosen(both(mine(), between, left.text))()],
        ["Take it instead", chosen(left.text)],
        ["Throw it away", chosen(null)],
      ]),
    );
  }
}

export function leftoverSentence(left: Leftover): string {
  if (left.replaced) return `This text of yours was replaced, ${day(left.time)}. It is kept until you choose.`;
  return `A tab that was closed had not saved this text${left.time ? ` of ${day(left.time)}` : ""}.`;
}

function both(mine: string, between: string, theirs: string): string {
  return mine ? `${mine}\n\n${between}${theirs}` : theirs;
}

function choice(sentence: string, other: string, ways: [string, () => void][]): HTMLElement {
  return h(
    "div",
    { class: "conflict" },
    h("p", { class: "state bad", role: "alert" }, sentence),
    h("pre", { class: "other-text", tabindex: "0", "aria-label": "The other text" }, other || "(empty)"),
    h("div", { class: "buttons" }, ...ways.map(([label, way]) => h("button", { type: "button", class: "quiet", onclick: way }, label))),
  );
}
