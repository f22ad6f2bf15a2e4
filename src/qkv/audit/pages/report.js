"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const body = document.querySelector("tbody");
const rows = [...body.rows];
const by = (id) => document.getElementById(id);
const filters = ["search", "clause", "profile", "verdict"].map(by);

function show() {
  const [search, clause, profile, verdict] = filters.map((field) => field.value);
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const row of rows) {
    const names = [...row.querySelectorAll("td[data-verdict]")].map((cell) => `${cell.dataset.verdict} ${cell.dataset.name}`);
    const text = `${row.textContent} ${names.join(" ")}`.toLowerCase();
    row.hidden = !(
      words.every((word) => text.includes(word)) &&
      (!clause || row.dataset.clauses.split(" ").includes(clause)) &&
      (!profile || row.dataset.profile === profile) &&
      (!verdict || row.querySelector(`td[data-verdict="${verdict}"]`))
    );
    count += !row.hidden;
  }
  by("count").textContent = `${count} of ${rows.length} cases`;
}
for (const field of filters) field.addEventListener("input", show);
by("clear").addEventListener("click", () => {
  for (const field of filters) field.value = "";
  show();
});

function sort(button) {
  const head = button.parentElement;
  const down = head.getAttribute("aria-sort") === "ascending";
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const column = Number(button.dataset.column);
  const key = (row) =>
    column === 0 ? row.cells[0].firstChild.textContent : column === 1 ? row.dataset.clauses : Number(row.cells[column].dataset.rank ?? 99);
  const compare = (a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : place(a) - place(b));
  rows.sort((a, b) => (down ? -compare(a, b) : compare(a, b)));
  body.append(...rows);
}
const place = (row) => Number(row.dataset.at);
for (const button of document.querySelectorAll("thead button")) button.addEventListener("click", () => sort(button));

function part(title, lines) {
  if (!lines.length) return [];
  const head = document.createElement("h3");
  head.textContent = title;
  const text = document.createElement("pre");
  text.textContent = lines.join("\n");
  return [head, text];
}

function open(cell) {
  const id = cell.parentElement.cells[0].firstChild.textContent;
  const at = cell.cellIndex - 2;
  const found = data.rows[id][at];
  by("case-title").textContent = `${data.kernels[at]}, ${id}`;
  const said = document.createElement("p");
  said.textContent = `${found.title}: ${found.told}`;
  by("case-body").replaceChildren(
    said,
    ...part("What was seen", found.says ? [found.says] : []),
    ...part("Input", found.input),
    ...part("Expected", found.right),
    ...part("Actual", found.found),
    ...part("In the library’s documentation", found.promised),
    ...part("Again", found.reproduce ? [found.reproduce] : []),
  );
  by("case").showModal();
}
body.addEventListener("click", (event) => {
  const cell = event.target.closest("td");
  if (cell?.querySelector("button")) open(cell);
});

const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
body.addEventListener("keydown", (event) => {
  const step = steps[event.key];
  const cell = event.target.closest("td");
  if (!step || !cell) return;
  event.preventDefault();
  const seen = rows.filter((row) => !row.hidden);
  const row = seen[seen.indexOf(cell.parentElement) + step[0]];
  row?.cells[cell.cellIndex + step[1]]?.querySelector("button")?.focus();
});

function migrate() {
  const found = data.changes[by("from").value]?.[by("to").value];
  const groups = new Map();
  for (const [kind, ...rest] of found ?? []) groups.set(kind, [...(groups.get(kind) ?? []), rest]);
  const parts = [...groups].flatMap(([kind, some]) => {
    const head = document.createElement("h3");
    head.textContent = `${kind} (${some.length})`;
    const list = document.createElement("ul");
    for (const [id, title, before, after] of some) {
      const item = document.createElement("li");
      item.textContent = `${id}, ${title}: ${before} → ${after}`;
      list.append(item);
    }
    return [head, list];
  });
  if (found && !parts.length) parts.push("Nothing changes meaning in the cases that both were asked.");
  by("changes").replaceChildren(...parts);
}
for (const id of ["from", "to"]) by(id).addEventListener("input", migrate);
