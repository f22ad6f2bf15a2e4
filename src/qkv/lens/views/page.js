"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const size = data.tokens.length;

  // Numbers ----------------------------------------------------------------------------------------------------------

  function bytes(text) {
    const raw = atob(text);
    const out = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
    return out;
  }
  const floats = (text) => new Float32Array(bytes(text).buffer);
  function halves(text) {
    const raw = new Uint16Array(bytes(text).buffer);
    return Float32Array.from(raw, (h) => {
      const sign = h & 0x8000 ? -1 : 1, exponent = (h >> 10) & 31, fraction = h & 1023;
      if (exponent === 0) return sign * fraction * 2 ** -24;
      if (exponent === 31) return fraction ? NaN : sign * Infinity;
      return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
    });
  }
  function number(x) {
    if (x === null || Number.isNaN(x)) return "none";
    if (x === 0) return "0";
    return Math.abs(x) < 0.0005 ? x.toExponential(1) : x.toPrecision(3);
  }

  const maps = new Map();
  for (const [layer, head, rows, cols, cells] of data.maps) {
    let found = null;
    maps.set(`${layer}.${head}`, { layer, head, rows, cols, get cells() { return (found ??= halves(cells)); } });
  }
  // Exact rows by "layer.head.query": those of the file, and those that a server was asked for, the oldest of which go.
  const nameOf = (layer, head, query) => `${layer}.${head}.${query}`;
  const rows = new Map();
  for (const row of data.rows) {
    const bits = bytes(row.allowed);
    const columns = Object.fromEntries(Object.entries(row.columns).map(([name, text]) => [name, floats(text)]));
    rows.set(nameOf(row.layer, row.head, row.query), { ...row, columns, allowed: (j) => (bits[j >> 3] >> (7 - (j & 7))) & 1 });
  }
  const HELD = data.rows.length + 40;
  const columnNames = Object.keys(data.rows[0].columns);
  async function fetched(layer, head, query) {
    const answer = await fetch(`row?layer=${layer}&head=${head}&query=${query}`);
    const told = await answer.json();
    if (!answer.ok) throw new Error(told.error);
    const columns = Object.fromEntries(columnNames.map((name) => [name, Float32Array.from(told[name], (x) => x ?? NaN)]));
    const { entropy, effective_keys: effective, mean_distance: distance, cancellation, sink_share: sink, space, bias_norm: bias } = told;
    const row = { layer: told.layer_index, head: told.head, query: told.query, columns, allowed: (j) => told.allowed[j], entropy, effective, distance, cancellation, sink, space, bias };
    rows.set(nameOf(row.layer, row.head, row.query), row);
    for (const [name, one] of rows) {
      if (rows.size <= HELD) break;
      if (!data.rows.some((kept) => nameOf(kept.layer, kept.head, kept.query) === name) && one !== row) rows.delete(name);
    }
    return row;
  }
  const largest = (layer) => Math.max(...layer[2]) + 1;
  const widest = Math.max(...data.layers.map(largest));

  // What is looked at; it stands in the address, so that a view can be shared --------------------------------------------

  const opening = rows.values().next().value;
  const state = { layer: opening.layer, head: opening.head, row: opening, quantity: data.quantity, scale: "row", key: 0, sort: "weight" };
  const exactRow = (layer, head) => rows.get(nameOf(layer, head, state.row.query)) ?? [...rows.values()].find((one) => one.layer === layer && one.head === head);
  let pending = null; // the name of a row that a server was asked for
  function read() {
    const given = new URLSearchParams(location.hash.slice(1));
    const layer = Number(given.get("layer") ?? state.layer), head = Number(given.get("head") ?? state.head);
    if (data.layers.some((one) => one[0] === layer && one[2].includes(head))) Object.assign(state, { layer, head });
    const row = given.get("row") ?? "";
    state.row = rows.get(row) ?? (given.has("row") ? null : exactRow(state.layer, state.head)) ?? state.row;
    const wanted = data.served && !rows.has(row) && row.match(/^(\d{1,9})\.(\d{1,9})\.(\d{1,9})$/);
    for (const name of ["quantity", "scale", "sort"]) {
      const value = given.get(name);
      if (value && [...$(name).options].some((option) => option.value === value)) state[name] = value;
    }
    const key = Number(given.get("key") ?? state.key);
    if (Number.isInteger(key) && key >= 0 && key < size) state.key = key;
    pending = wanted ? row : null;
    return wanted ? wanted.slice(1).map(Number) : null;
  }
  function write() {
    const { layer, head, quantity, scale, key, sort } = state;
    const text = new URLSearchParams({ layer, head, row: pending ?? nameOf(row().layer, row().head, row().query), quantity, scale, key, sort }).toString();
    if (location.hash.slice(1) !== text) history.replaceState(null, "", `#${text}`);
  }

  // Colours ------------------------------------------------------------------------------------------------------------

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const ends = () => (dark.matches ? [[16, 21, 30], [143, 178, 255]] : [[255, 255, 255], [22, 62, 160]]);
  function mixed(t) {
    const [from, to] = ends(), k = Math.min(Math.max(t, 0), 1);
    return from.map((a, i) => Math.round(a + (to[i] - a) * k));
  }
  /** Brightness 0…1 of each cell of a map, the sink's column held out of the scale. */
  function shades(map) {
    const { cells, rows: many, cols } = map;
    const out = new Float32Array(cells.length);
    const sinkColumn = data.sink === null || cols < 2 ? -1 : Math.floor(((data.sink + 1) * cols - 1) / size);
    const counted = (i) => i % cols !== sinkColumn;
    if (state.scale === "rank") {
      const order = [...cells.keys()].filter((i) => counted(i) && cells[i] > 0).sort((a, b) => cells[a] - cells[b]);
      order.forEach((i, at) => { out[i] = (at + 1) / order.length; });
      for (let i = 0; i < cells.length; i++) if (!counted(i) && cells[i] > 0) out[i] = 1;
      return out;
    }
    let whole = 0;
    for (let i = 0; i < cells.length; i++) if (counted(i)) whole = Math.max(whole, cells[i]);
    for (let r = 0; r < many; r++) {
      let top = 0;
      for (let c = 0; c < cols; c++) if (counted(r * cols + c)) top = Math.max(top, cells[r * cols + c]);
      for (let c = 0; c < cols; c++) {
        const x = cells[r * cols + c];
        if (state.scale === "log") out[r * cols + c] = x > 0 ? Math.max((Math.log10(x) + 4) / 4, 0) : 0;
        else out[r * cols + c] = x / ((state.scale === "row" ? top : whole) || 1);
      }
    }
    return out;
  }
  function image(map) {
    const pixels = new ImageData(map.cols, map.rows), shade = shades(map);
    for (let i = 0; i < shade.length; i++) pixels.data.set([...mixed(shade[i]), 255], i * 4);
    const canvas = document.createElement("canvas");
    canvas.width = map.cols;
    canvas.height = map.rows;
    canvas.getContext("2d").putImageData(pixels, 0, 0);
    return canvas;
  }

  // The maps -------------------------------------------------------------------------------------------------------------

  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const cell = { r: 0, c: 0 };
  /** Pixels of one head in the grid: as large as a column and two screens take. */
  const side = Math.max(Math.floor(Math.min(460 / widest, 72, Math.max(1400 / data.layers.length, 24))), 8);
  function drawGrid() {
    const canvas = $("grid"), one = side, edge = 44;
    canvas.width = edge + one * widest + 2;
    canvas.height = 20 + one * data.layers.length + 2;
    canvas.style.maxWidth = `${canvas.width}px`;
    const pen = canvas.getContext("2d");
    pen.imageSmoothingEnabled = false;
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = style("--ink");
    const step = Math.ceil(16 / one);
    for (let h = 0; h < widest; h += step) pen.fillText(String(h), edge + h * one + 2, 13);
    data.layers.forEach(([index, , heads], at) => {
      pen.fillStyle = style("--ink");
      if (at % step === 0) pen.fillText(String(index), 4, 20 + at * one + Math.min(one, 14));
      for (const head of heads) {
        const map = maps.get(`${index}.${head}`);
        if (map) pen.drawImage(image(map), edge + head * one + 1, 20 + at * one + 1, one - 2, one - 2);
        if (index === state.layer && head === state.head) {
          pen.strokeStyle = style("--sink");
          pen.lineWidth = 3;
          pen.strokeRect(edge + head * one + 1, 20 + at * one + 1, one - 1, one - 1);
        }
      }
    });
  }
  function drawMap() {
    const canvas = $("map"), map = maps.get(`${state.layer}.${state.head}`);
    $("map-title").textContent = `Layer ${state.layer}, head ${state.head}`;
    canvas.hidden = !map;
    $("map-scale").textContent = `colours: ${$("scale").selectedOptions[0].textContent}${data.sink === null ? "" : ", the sink’s column held out of it and marked above"}.`;
    if (!map) return;
    const one = Math.max(Math.floor(620 / Math.max(map.cols, map.rows)), 1);
    canvas.width = one * map.cols;
    canvas.height = one * map.rows;
    canvas.style.maxWidth = `${canvas.width}px`;
    const pen = canvas.getContext("2d");
    pen.imageSmoothingEnabled = false;
    pen.drawImage(image(map), 0, 0, canvas.width, canvas.height);
    if (data.sink !== null && map.cols > 1) {
      const c = Math.floor(((data.sink + 1) * map.cols - 1) / size);
      pen.fillStyle = style("--sink");
      pen.fillRect(c * one, 0, Math.max(one, 2), 4);
    }
    pen.strokeStyle = style("--sink");
    pen.lineWidth = 2;
    pen.strokeRect(cell.c * one, cell.r * one, one, one);
  }
  const spread = (at, cells, many, first) => [first + Math.floor((at * many) / cells), first + Math.floor(((at + 1) * many) / cells) - 1];
  const range = ([a, b]) => (a === b ? `${a}` : `${a} to ${b}`);
  function sayCell() {
    const map = maps.get(`${state.layer}.${state.head}`);
    if (!map) return;
    const queries = spread(cell.r, map.rows, data.last - data.first + 1, data.first), keys = spread(cell.c, map.cols, size, 0);
    const quote = (at) => `“${data.tokens[at].trim() || data.tokens[at]}”`;
    say(
      `Layer ${state.layer}, head ${state.head}: queries ${range(queries)} (${quote(queries[0])} …), keys ${range(keys)} (${quote(keys[0])} …): ` +
        `largest weight ${number(map.cells[cell.r * map.cols + cell.c])}` +
        (data.sink !== null && keys[0] <= data.sink && data.sink <= keys[1] ? "; this column holds the sink and is left out of the scale" : ""),
    );
  }
  function say(text) {
    $("status").textContent = text;
  }

  // The row --------------------------------------------------------------------------------------------------------------

  const PAGE = 400, LINES = 50;
  let textStart = 0, keyStart = 0, order = [];
  const row = () => state.row;
  const shown = (token) => token.replace(/\n/g, "↵\n").replace(/\t/g, "⇥") || "∅";
  function top(column) {
    let best = 0;
    for (let j = 0; j < size; j++) if (j !== data.sink && Number.isFinite(column[j])) best = Math.max(best, Math.abs(column[j]));
    return best || 1;
  }
  function ranks(column) {
    const by = [...column.keys()].filter((j) => Math.abs(column[j]) > 0).sort((a, b) => Math.abs(column[a]) - Math.abs(column[b]));
    const out = new Map();
    by.forEach((j, at) => out.set(j, (at + 1) / by.length));
    return out;
  }
  function drawText() {
    const column = row().columns[state.quantity], best = top(column), rank = state.scale === "rank" ? ranks(column) : null;
    const box = $("text");
    box.textContent = "";
    const parts = document.createDocumentFragment();
    for (let j = textStart; j < Math.min(textStart + PAGE, size); j++) {
      const span = document.createElement("span");
      span.textContent = shown(data.tokens[j]);
      span.dataset.key = j;
      const x = column[j];
      let shade = j === data.sink ? 0 : Math.abs(x) / best;
      if (state.scale === "log" && shade > 0) shade = Math.max((Math.log10(Math.abs(x)) + 4) / 4, 0);
      if (rank && j !== data.sink) shade = rank.get(j) ?? 0;
      if (shade > 0.01) {
        const [r, g, b] = x < 0 ? [190, 70, 50] : [47, 98, 208];
        span.style.background = `rgb(${r} ${g} ${b} / ${(Math.min(shade, 1) * 0.45).toFixed(3)})`;
      }
      span.className = [!row().allowed(j) && "late", j === data.sink && "sink", j === row().query && "query", j === state.key && "here"].filter(Boolean).join(" ");
      parts.append(span);
    }
    box.append(parts);
    $("text-where").textContent = `tokens ${textStart} to ${Math.min(textStart + PAGE, size) - 1} of ${size}`;
    $("text-before").disabled = textStart === 0;
    $("text-after").disabled = textStart + PAGE >= size;
    const here = box.querySelector(".here") ?? box.querySelector(".query");
    if (here) box.scrollTop += here.getBoundingClientRect().top - box.getBoundingClientRect().top - (box.clientHeight - here.offsetHeight) / 2;
  }
  function sortKeys() {
    order = [...Array(size).keys()].filter((j) => row().allowed(j));
    if (state.sort !== "key") {
      const column = row().columns[state.sort], of = (j) => (Number.isNaN(column[j]) ? -1 : Math.abs(column[j]));
      order.sort((a, b) => of(b) - of(a) || a - b);
    }
  }
  function drawKeys() {
    const body = $("keys");
    body.textContent = "";
    const parts = document.createDocumentFragment();
    for (const j of order.slice(keyStart, keyStart + LINES)) {
      const line = document.createElement("tr");
      line.className = j === state.key ? "here" : "";
      const cells = [j, shown(data.tokens[j]) + (j === data.sink ? " (sink)" : j === row().query ? " (itself)" : ""), ...columnNames.map((name) => number(row().columns[name][j]))];
      for (const text of cells) line.append(Object.assign(document.createElement("td"), { textContent: text }));
      parts.append(line);
    }
    body.append(parts);
    $("keys-where").textContent = order.length ? `keys ${keyStart + 1} to ${Math.min(keyStart + LINES, order.length)} of ${order.length}` : "this row may read no key";
    $("keys-before").disabled = keyStart === 0;
    $("keys-after").disabled = keyStart + LINES >= order.length;
  }
  function drawRow() {
    const one = row();
    $("row-facts").textContent =
      `Layer ${one.layer}, head ${one.head}, query ${one.query} “${data.tokens[one.query].trim()}”: reads ${order.length} keys, as evenly as ${number(one.effective)} would be ` +
      `(entropy ${number(one.entropy)} nats), ${number(one.distance)} tokens back on average. Even weights would give each ${number(1 / order.length)}. Contributions cancel by ${number(one.cancellation)} (0: all point one way). ` +
      (one.space === "residual" ? "Lengths are measured after the output projection." : "Lengths are measured in the head’s own space.") +
      (one.bias ? ` The bias that all values share is left out of contributions; its own length is ${number(one.bias)}.` : "") +
      (one.sink ? ` A learned sink takes ${number(one.sink)} of the weight.` : "");
    drawText();
    drawKeys();
  }
  function sayKey() {
    const j = state.key, { recency, ...columns } = row().columns;
    const said = Object.entries(columns).map(([name, column]) => `${$("quantity").querySelector(`[value=${name}]`).textContent} ${number(column[j])}`);
    said[0] += ` (by distance alone ${number(recency[j])})`;
    const allowed = row().allowed(j) ? said.join(", ") : "the mask forbids it";
    say(`Key ${j} “${data.tokens[j].trim() || data.tokens[j]}”${j === data.sink ? ", the sink, held out of the shading" : ""}: ${allowed}.`);
  }

  // Everything together ---------------------------------------------------------------------------------------------------

  function options(select, pairs) {
    select.textContent = "";
    for (const [value, text] of pairs) select.append(new Option(text, value));
  }
  function drawControls() {
    options($("layer"), data.layers.map(([index, name]) => [index, name ? `${index} (${name})` : `${index}`]));
    $("layer").value = state.layer;
    const layer = data.layers.find((one) => one[0] === state.layer);
    options($("head"), layer[2].map((head) => [head, `${head}`]));
    $("head").value = state.head;
    options($("row"), [...rows].map(([name, one]) => [name, `layer ${one.layer}, head ${one.head}, query ${one.query}`]));
    $("row").value = nameOf(row().layer, row().head, row().query);
    if (data.served) $("query").value = row().query;
    for (const name of ["quantity", "scale", "sort"]) $(name).value = state[name];
  }
  function draw() {
    drawControls();
    drawGrid();
    drawMap();
    sortKeys();
    drawRow();
    write();
  }
  function toHead(layer, head) {
    const at = data.layers.findIndex((one) => one[0] === layer);
    if (at < 0 || !data.layers[at][2].includes(head)) return;
    Object.assign(state, { layer, head });
    if (data.served) {
      toRow(layer, head, row().query);
      return;
    }
    const exact = exactRow(layer, head);
    if (exact) state.row = exact;
    draw();
    const found = exact ? "every number of its row stands beside" : "its rows are not in this file; the command below draws them";
    say(`Layer ${layer}, head ${head}: ${found}.`);
  }
  let asked = 0;
  /** Show an exact row, from the file or the server; of several that were asked for, the last. */
  async function toRow(layer, head, query) {
    const ticket = ++asked, known = rows.get(nameOf(layer, head, query));
    Object.assign(state, { layer, head, row: known ?? state.row });
    pending = known || !data.served ? null : nameOf(layer, head, query);
    draw();
    if (!known) {
      if (!data.served) {
        say(`The row of query ${query} is not in this file; the command below draws it.`);
        return;
      }
      say(`Asking for layer ${layer}, head ${head}, query ${query} …`);
      try {
        const found = await fetched(layer, head, query);
        if (ticket !== asked) return;
        pending = null;
        state.row = found;
        draw();
      } catch (problem) {
        if (ticket !== asked) return;
        pending = null;
        write();
        say(`That row cannot be had: ${problem.message}.`);
        return;
      }
    }
    say(`Layer ${layer}, head ${head}, query ${query}: every number of its row stands beside.`);
  }
  function toKey(j) {
    if (j < 0 || j >= size) return;
    state.key = j;
    textStart = Math.floor(j / PAGE) * PAGE;
    const at = order.indexOf(j);
    if (at >= 0) keyStart = Math.floor(at / LINES) * LINES;
    drawText();
    drawKeys();
    sayKey();
    write();
  }
  const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  $("grid").addEventListener("keydown", (event) => {
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    const at = data.layers.findIndex((one) => one[0] === state.layer) + move[0];
    if (data.layers[at]) toHead(data.layers[at][0], state.head + move[1]);
  });
  const queryOf = (map) => spread(cell.r, map.rows, data.last - data.first + 1, data.first)[0];
  $("map").addEventListener("keydown", (event) => {
    const move = moves[event.key], map = maps.get(`${state.layer}.${state.head}`);
    if (!map || (!move && event.key !== "Enter")) return;
    event.preventDefault();
    if (!move) {
      toRow(state.layer, state.head, queryOf(map));
      return;
    }
    cell.r = Math.min(Math.max(cell.r + move[0], 0), map.rows - 1);
    cell.c = Math.min(Math.max(cell.c + move[1], 0), map.cols - 1);
    drawMap();
    sayCell();
  });
  $("text").addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -10, ArrowDown: 10, Home: -state.key, End: size - 1 - state.key }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    toKey(Math.min(Math.max(state.key + by, 0), size - 1));
  });
  function place(canvas, event) {
    const box = canvas.getBoundingClientRect();
    return [((event.clientX - box.left) * canvas.width) / box.width, ((event.clientY - box.top) * canvas.height) / box.height];
  }
  $("grid").addEventListener("click", (event) => {
    const [x, y] = place($("grid"), event), one = side;
    const layer = data.layers[Math.floor((y - 20) / one)];
    if (layer) toHead(layer[0], Math.floor((x - 44) / one));
  });
  for (const kind of ["click", "pointermove"]) {
    $("map").addEventListener(kind, (event) => {
      const map = maps.get(`${state.layer}.${state.head}`);
      if (!map) return;
      const [x, y] = place($("map"), event), one = $("map").width / map.cols;
      const r = Math.min(Math.max(Math.floor(y / one), 0), map.rows - 1), c = Math.min(Math.max(Math.floor(x / one), 0), map.cols - 1);
      if (kind === "pointermove" && r === cell.r && c === cell.c) return;
      Object.assign(cell, { r, c });
      drawMap();
      sayCell();
      if (kind === "click" && (data.served || rows.has(nameOf(state.layer, state.head, queryOf(map))))) toRow(state.layer, state.head, queryOf(map));
    });
  }
  $("text").addEventListener("click", (event) => {
    const key = event.target.closest("[data-key]")?.dataset.key;
    if (key !== undefined) toKey(Number(key));
  });
  $("layer").addEventListener("change", () => {
    const layer = data.layers.find((one) => one[0] === Number($("layer").value));
    toHead(layer[0], layer[2].includes(state.head) ? state.head : layer[2][0]);
  });
  $("head").addEventListener("change", () => toHead(state.layer, Number($("head").value)));
  $("row").addEventListener("change", () => {
    const one = rows.get($("row").value);
    toRow(one.layer, one.head, one.query);
  });
  if (data.served) $("query").addEventListener("change", () => toRow(state.layer, state.head, Number($("query").value)));
  for (const name of ["quantity", "scale", "sort"]) {
    $(name).addEventListener("change", () => {
      state[name] = $(name).value;
      keyStart = 0;
      draw();
    });
  }
  $("text-before").addEventListener("click", () => { textStart = Math.max(textStart - PAGE, 0); drawText(); });
  $("text-after").addEventListener("click", () => { textStart = Math.min(textStart + PAGE, Math.floor((size - 1) / PAGE) * PAGE); drawText(); });
  $("keys-before").addEventListener("click", () => { keyStart = Math.max(keyStart - LINES, 0); drawKeys(); });
  $("keys-after").addEventListener("click", () => { keyStart += LINES; drawKeys(); });
  function toAddress() {
    const wanted = read();
    draw();
    if (wanted) toRow(...wanted);
  }
  addEventListener("hashchange", toAddress);
  dark.addEventListener("change", draw);

  state.key = opening.query;
  const wanted = read();
  textStart = Math.floor(row().query / PAGE) * PAGE;
  draw();
  say("Choose a head in the maps, or a key in the text.");
  if (wanted) toRow(...wanted);
})();
