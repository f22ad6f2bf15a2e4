// The notebook of a static site in the browser's store: what is let in, and what becomes of a store that was damaged.

import assert from "node:assert/strict";
import { bundle, test } from "./unit.mjs";

/** A browser's store, with room for so many characters. */
class Room extends Map {
  room = Infinity;
  get length() {
    return this.size;
  }
  getItem = (name) => this.get(name) ?? null;
  removeItem = (name) => void this.delete(name);
  key = (i) => [...this.keys()][i] ?? null;
  setItem = (name, value) => {
    const taken = [...this].reduce((sum, [key, text]) => sum + (key === name ? 0 : key.length + text.length), 0);
    if (taken + name.length + value.length > this.room) throw new Error("QuotaExceededError");
    this.set(name, value);
  };
}

const { BrowserStore } = await bundle(`export { BrowserStore } from "./browser-store.ts";`);
const PLACE = "qkv-notebook /";
const TIME = "2026-01-01T00:00:00Z";
const HEAD = { format: "qkv-notebook", version: 1 };
const NOTE = { lesson: "attention", section: "roles", text: "mine", updated: TIME };
const ATTEMPT = { id: "q1", lesson: "attention", time: TIME, code: "c", passed: false, report: {}, solution_shown: false };

/** A store in a browser that has stored `text`. */
function desk(text) {
  globalThis.localStorage = new Room(text === undefined ? [] : [[PLACE, text]]);
  return new BrowserStore();
}

test("an import that is no notebook is refused whole, and nothing is stored", async () => {
  const store = desk();
  const rubbish = [
    { notes: [{}] }, { notes: "abc" }, { notes: [null] }, { drafts: [{ lesson: "attention", code: null }] }, { completed: { attention: 5 } },
    { attempts: [{ id: "zz" }] }, { attempts: [ATTEMPT] }, { cases: [{ id: "c1", lesson: "attention" }] },
  ];
  for (const part of rubbish) {
    for (const take of ["previewImport", "takeIn"]) {
      await assert.rejects(store[take]({ ...HEAD, ...part }), /^Error: document must be an exported notebook, but .*; choose the JSON file/);
    }
  }
  assert.equal(localStorage.size, 0);
});

test("what is exported comes in again, and then is all there", async () => {
  const store = desk();
  await store.saveNote("attention", "roles", "mine", 0);
  await store.saveDraft("attention", "a = 1", 0);
  await store.setBookmark("attention", "roles", true);
  await store.setCompleted("attention", true);
  await store.addAttempt({ lesson: "attention", code: "c", passed: true, report: null, solution_shown: false });
  await store.addCase({ lesson: "attention", form: "json", text: "{}", note: "", verdict: null });
  const document = JSON.parse(await store.exportText("json"));
  assert.deepEqual(await store.takeIn(document), { new: [], changed: [], conflicts: [], equal: 7 });
  const other = desk();
  assert.equal((await other.takeIn(document)).new.length, 7);
  assert.deepEqual({ ...JSON.parse(await other.exportText("json")), exported: "" }, { ...document, exported: "" });
  assert.deepEqual(other.damaged(), []);
});

test("a store that was cut short is set aside, and the notebook goes on", async () => {
  const whole = desk();
  await whole.saveNote("attention", "roles", "mine", 0);
  const cut = localStorage.getItem(PLACE).slice(0, -20);
  const store = desk(cut);
  assert.deepEqual((await store.read()).notes, []);
  await store.saveNote("attention", "roles", "new", 0);
  assert.equal((await store.read()).notes[0].text, "new");
  const [damaged, ...more] = store.damaged();
  assert.deepEqual([damaged.text, more], [cut, []]);
  store.throwAway(damaged);
  assert.deepEqual(store.damaged(), []);
  assert.equal((await store.read()).notes[0].text, "new");
});

test("what can be read of a store with rubbish in it stays", async () => {
  for (const rubbish of [{ attempts: [{ id: "zz" }] }, { attempts: "abc" }, { completed: { attention: 5 } }, { drafts: [null] }]) {
    const text = JSON.stringify({ notes: [{ ...NOTE, revision: 4 }], ...rubbish });
    const store = desk(text);
    const book = await store.read();
    assert.deepEqual(book.notes, [{ ...NOTE, revision: 4 }]);
    assert.deepEqual([book.attempts, book.drafts, book.completed], [[], [], {}]);
    assert.deepEqual(store.damaged().map((one) => one.text), [text]);
  }
  // Of an attempt only the report is missing.
  const store = desk(JSON.stringify({ notes: [], attempts: [ATTEMPT] }));
  assert.deepEqual((await store.read()).attempts, [{ ...ATTEMPT, report: null }]);
  assert.equal((await store.takeIn(JSON.parse(await store.exportText("json")))).equal, 1);
});

test("where there is no room to set it aside, a damaged store is read and not written over", async () => {
  const text = JSON.stringify({ notes: [{ ...NOTE, revision: 4 }], drafts: [null] });
  const store = desk(text);
  localStorage.room = PLACE.length + text.length;
  assert.equal((await store.read()).notes[0].text, "mine");
  await assert.rejects(store.saveNote("attention", "roles", "more", 4), /cannot be read\. Download it/);
  assert.deepEqual(store.damaged(), [{ place: PLACE, text }]);
  localStorage.room = Infinity;
  store.throwAway(store.damaged()[0]);
  assert.deepEqual([store.damaged(), (await store.read()).notes[0].text], [[], "mine"]);
});
