// What well-known libraries do with the kind of input that was tried, from the verdicts of the audit.

import { json } from "../app.ts";
import { h, put, unique } from "../dom.ts";

interface Who {
  library: string;
  version: string;
  functions: string[];
}

interface Told {
  title: string;
  does: { what: string; right: boolean; who: Who[] }[];
}

interface Table {
  made: string;
  cases: Record<string, Told>;
}

let table: Promise<Table> | undefined;

/** A table for each case of the audit that the input is like; it fills itself when the verdicts have come. */
export function elsewhere(alike: string[]): HTMLElement {
  const heading = unique("elsewhere");
  const place = h("div", {});
  const section = h(
    "section",
    { class: "elsewhere", "aria-labelledby": heading },
    h("h3", { id: heading }, "What libraries do with such an input"),
    place,
  );
  table ??= json("api/elsewhere.json");
  table.then(
    ({ made, cases }) => {
      const known = alike.filter((id) => id in cases);
      if (!known.length) return put(place, h("p", { class: "hint" }, "None of them was asked for an input of this kind."));
      put(place, ...known.map((id) => view(cases[id])), h("p", { class: "hint" }, `Found by qkv audit --all: ${made}.`));
    },
    (error) => {
      table = undefined;
      put(place, h("p", { class: "hint" }, `This cannot be read now: ${(error as Error).message}`));
    },
  );
  return section;
}

function view({ title, does }: Told): HTMLElement {
  return h(
    "table",
    {},
    h("caption", {}, `Asked: ${title}`),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "What it does"), h("th", { scope: "col" }, "Library, version"))),
    h(
      "tbody",
      {},
      ...does.map(({ what, right, who }) =>
        h(
          "tr",
          {},
          h("th", { scope: "row" }, what, right ? h("span", { class: "allowed" }, "as the contract allows") : null),
          h("td", {}, h("ul", {}, ...who.map((one) => h("li", {}, ...named(one))))),
        ),
      ),
    ),
  );
}

function named({ library, version, functions }: Who): (HTMLElement | string)[] {
  return [h("b", {}, library), ` ${version}${functions.length ? `: ${functions.join(", ")}` : ""}`];
}
