// The life of a text that is saved as it is typed: a notebook with revisions, tabs that come, go and crash. No browser.

import assert from "node:assert/strict";
import { bundle, test } from "./unit.mjs";

const { Texts, wellFormed, Backups, Conflict } = await bundle(`
  export * from "./autosave.ts"; export * from "./backups.ts"; export { Conflict } from "./store.ts";
`);

const KEY = "note attention/roles";

/** A browser's store. */
class Store extends Map {
  get length() {
    return this.size;
  }
  getItem = (name) => this.get(name) ?? null;
  setItem = (name, value) => void this.set(name, value);
  removeItem = (name) => void this.delete(name);
  key = (i) => [...this.keys()][i] ?? null;
}

/** A notebook with one text, as the server keeps it, and tabs that can crash and be loaded again. */
function desk(first = "") {
  const store = new Store();
  const book = { text: first, revision: first ? 1 : 0, away: false, silent: false, saves: [] };
  const open = new Set();
  const save = async (text, base) => {
    if (book.away) throw new Error("the server does not answer");
    book.saves.push(text);
    const newer = book.text && book.text !== text && book.revision !== base;
    if (newer) throw new Conflict(book.text, book.revision);
    if (book.text !== text) Object.assign(book, { text, revision: book.revision + 1 });
    // Saved, but nobody hears of it.
    if (book.silent) throw new Error("the answer was lost");
    return { revision: book.revision, updated: "now" };
  };
  /** A page in the tab `id`; nothing it planned happens once the next one is loaded. */
  const load = (id, notebook = "one", seen = book) => {
    open.add(id);
    const backups = new Backups(notebook, { id, open: async () => new Set(open) }, store);
    const texts = new Texts(backups);
    const page = { alive: true, status: { kind: "clean" }, backups, texts };
    page.text = texts.of(KEY, seen.text, seen.revision, (text, base) => (page.alive ? save(text, base) : new Promise(() => {})));
    page.text.watch((status) => (page.status = status));
    page.crash = () => {
      page.alive = false;
      open.delete(id);
    };
    return page;
  };
  return { book, store, load };
}

const kinds = (page) => page.status.kind;

test("a text is saved, confirmed, and then kept nowhere else", async () => {
  const { book, store, load } = desk();
  const tab = load("a");
  tab.text.typed("mine");
  assert.equal(store.size, 1);
  await tab.texts.settled();
  assert.deepEqual([book.text, kinds(tab), store.size], ["mine", "saved", 0]);
});

test("a reload keeps the revision that a text was typed on, and raises the conflict again", async () => {
  const { book, store, load } = desk("old");
  const [one, two] = [load("a"), load("b")];
  one.text.typed("from one");
  await one.texts.settled();
  two.text.typed("from two");
  await two.texts.settled();
  assert.deepEqual([kinds(two), two.status.theirs], ["conflict", "from one"]);
  two.crash();
  let again;
  for (const more of ["", ", and more", ", and still more"]) {
    again = load("b");
    if (more) again.text.typed(`from two${more}`);
    await again.texts.settled();
    const now = [kinds(again), again.status.theirs, again.text.text, book.text];
    assert.deepEqual(now, ["conflict", "from one", `from two${more}`, "from one"]);
    again.crash();
  }
  again = load("b");
  assert.equal(book.text, "from one");
  again.text.settle("both");
  await again.texts.settled();
  assert.deepEqual([book.text, store.size], ["both", 0]);
});

test("to go back to the text before both is a choice, too", async () => {
  const { book, load } = desk("old");
  const [one, two] = [load("a"), load("b")];
  one.text.typed("from one");
  await one.texts.settled();
  two.text.typed("from two");
  await two.texts.settled();
  two.text.typed("old");
  two.crash();
  const again = load("b");
  assert.deepEqual([kinds(again), again.text.text, book.text], ["conflict", "old", "from one"]);
});

test("whatever is chosen, nothing unsaved stays behind", async () => {
  for (const choose of ["theirs", "mine", "old", "both"]) {
    const { book, store, load } = desk("old");
    const [one, two] = [load("a"), load("b")];
    one.text.typed("theirs");
    await one.texts.settled();
    two.text.typed("mine");
    await two.texts.settled();
    two.text.settle(choose);
    await two.texts.settled();
    assert.deepEqual([book.text, kinds(two), store.size], [choose, "saved", 0]);
    two.text.typed(`${choose}, then more`);
    await two.texts.settled();
    assert.equal(book.text, `${choose}, then more`);
  }
});

test("a tab's unsaved text is not touched by what other tabs type", async () => {
  const { book, load } = desk("old");
  book.away = true;
  const [one, two, three] = [load("a"), load("b"), load("c")];
  one.text.typed("from one");
  two.text.typed("from two");
  three.text.typed("from three");
  one.crash();
  two.crash();
  three.crash();
  assert.deepEqual(["a", "b", "c"].map((id) => load(id).text.text), ["from one", "from two", "from three"]);
});

test("a new tab takes nothing over by itself, and is offered what a closed one left", async () => {
  const { book, load } = desk("old");
  book.away = true;
  const one = load("a");
  one.text.typed("left behind");
  const two = load("b");
  assert.equal(two.text.text, "old");
  assert.deepEqual(await two.backups.leftovers(), []); // its tab is open still
  one.crash();
  const [left] = await two.backups.leftovers();
  assert.deepEqual([left.text, left.key, left.base], ["left behind", KEY, 1]);
  two.backups.drop(left.key, left.tab);
  assert.deepEqual(await two.backups.leftovers(), []);
});

test("another notebook's unsaved texts are not this one's", async () => {
  const { book, load } = desk("old");
  book.away = true;
  const one = load("a", "one");
  one.text.typed("of the first notebook");
  one.crash();
  const other = load("a", "two");
  assert.equal(other.text.text, "old");
  assert.deepEqual(await other.backups.leftovers(), []);
  assert.equal(load("a", "one").text.text, "of the first notebook");
});

test("an own text whose confirmation was lost is no conflict", async () => {
  const { book, load } = desk("old");
  const tab = load("a");
  book.silent = true;
  tab.text.typed("first");
  await tab.texts.settled();
  assert.deepEqual([kinds(tab), book.text], ["trouble", "first"]);
  book.silent = false;
  tab.text.typed("first, second");
  await tab.texts.settled();
  assert.deepEqual([kinds(tab), book.text], ["saved", "first, second"]);
});

test("nor is it after a reload", async () => {
  const { book, store, load } = desk("old");
  book.silent = true;
  const tab = load("a");
  tab.text.typed("first");
  await tab.texts.settled();
  tab.text.typed("first, second");
  tab.crash();
  book.silent = false;
  const again = load("a");
  await again.texts.settled();
  assert.deepEqual([book.text, again.text.text, store.size], ["first, second", "first, second", 0]);
});

test("nor where the reload read the notebook before the last save arrived", async () => {
  const { book, store, load } = desk("old");
  const before = { ...book };
  const tab = load("a");
  book.silent = true;
  tab.text.typed("first");
  await tab.texts.settled();
  tab.crash();
  book.silent = false;
  const again = load("a", "one", before);
  again.text.typed("first, second");
  await again.texts.settled();
  assert.deepEqual([book.text, kinds(again), store.size], ["first, second", "saved", 0]);
});

test("a text that the notebook has already is forgotten, not saved again", async () => {
  for (const [typed, kept] of [["typed twice", "typed twice"], ["half \ud83d", "half \ufffd"]]) {
    const { book, store, load } = desk("old");
    const tab = load("a");
    book.away = true;
    tab.text.typed(typed);
    await tab.texts.settled();
    tab.crash();
    Object.assign(book, { away: false, text: kept, revision: 9 });
    const again = load("a");
    await again.texts.settled();
    assert.deepEqual([again.text.text, again.text.dirty, store.size, book.saves.length], [kept, false, 0, 0]);
  }
});

test("a view that comes back has what was typed, though the notebook was read before", async () => {
  const { book, load } = desk("old");
  const tab = load("a");
  tab.text.typed("newer");
  await tab.texts.settled();
  const same = tab.texts.of(KEY, "old", 1, () => assert.fail("another way to save"));
  assert.equal(same.text, "newer");
  assert.equal(tab.texts.of(KEY, "newest", book.revision + 1, () => undefined).text, "newest");
});

test("half of a character pair is replaced, and said", async () => {
  assert.equal(wellFormed("a\ud800b\udc00c\u{1f600}"), "a\ufffdb\ufffdc\u{1f600}");
  const { book, store, load } = desk();
  const tab = load("a");
  tab.text.typed("half \ud83d");
  await tab.texts.settled();
  assert.deepEqual([book.text, kinds(tab), tab.status.mended, store.size], ["half \ufffd", "saved", true, 0]);
  tab.text.typed("half no more");
  await tab.texts.settled();
  assert.deepEqual([book.text, tab.status.mended], ["half no more", false]);
});

test("a store that is full or forbidden costs nothing that can be saved", async () => {
  const full = { length: 0, key: () => null, getItem: () => null, removeItem: () => undefined, setItem: () => { throw new Error("full"); } };
  for (const store of [full, undefined]) {
    let kept = "";
    const texts = new Texts(new Backups("one", { id: "a", open: async () => new Set(["a"]) }, store));
    const text = texts.of(KEY, "", 0, async (saved) => ((kept = saved), { revision: 1, updated: "" }));
    text.typed("mine");
    await texts.settled();
    assert.equal(kept, "mine");
  }
});
