// When a task is ended, and whom the page blames: told in made-up time, so that no machine's pace is in it.

import assert from "node:assert/strict";
import { bundle, test } from "./unit.mjs";

const { Lived, Patience, SILENCE, WHOLE } = await bundle(`export * from "./lab/patience.ts"`);

/** Watches a task for `seconds`: `pulse(t)` is what the worker says every 50 ms, or nothing. Gives verdict and time. */
function watch(kind, seconds, pulse = () => undefined) {
  const patience = new Patience(kind);
  patience.start(0);
  for (let at = 50; at <= 1000 * seconds; at += 50) {
    const news = pulse(at / 1000);
    if (news) patience.hear(at, news);
    const verdict = patience.ask(at);
    if (verdict) return { verdict, at };
  }
  return { verdict: null, strained: patience.strained };
}
const pulse = (yours, calls, each) => ({ event: "pulse", yours, calls, each });
const PROMISE = 5000;

test("silence is a hang, within the promise, whatever was said before", () => {
  for (const until of [0, 1, 2.5]) {
    const { verdict, at } = watch("grade", 60, (t) => t < until && pulse(t / 2, 100 * t, 0.0005));
    assert.equal(verdict, "hang");
    assert.ok(at <= 1000 * until + SILENCE + 100 && at <= PROMISE);
  }
  for (const kind of ["run", "try", "rows"]) {
    const { verdict, at } = watch(kind, 60);
    assert.equal(verdict, "hang");
    assert.ok(at <= PROMISE);
  }
});

test("a task whose every step ends in time goes on, and an input of any size gets the time it needs", () => {
  for (const kind of ["try", "rows"]) {
    // The definition needs a second for it on this machine, now.
    assert.equal(watch(kind, 9, (t) => t < 0.1 && pulse(0, 1, 1)).verdict, null);
    assert.equal(watch(kind, 60, (t) => t < 0.1 && pulse(0, 1, 1)).verdict, "hang");
  }
  assert.equal(watch("rows", 60, (t) => t % 4 === 0 && { event: "row", number: t, of: 99 }).verdict, null);
});

test("a function far slower than the definition is slow, however idle the machine is", () => {
  // 50 ms a call; the definition needs half a millisecond.
  const { verdict, at } = watch("grade", 60, (t) => pulse(t, 20 * t, 0.0005));
  assert.equal(verdict, "slow");
  assert.ok(at <= PROMISE);
});

test("honest work on a machine of any pace is not blamed, and most of it is finished", () => {
  // The hardest honest grading: 900 calls three times as slow as the definition, with as much time for the grader.
  for (const each of [0.0003, 0.001, 0.003, 0.005]) {
    const needs = 900 * each * 6;
    const seen = watch("grade", needs, (t) => pulse(t / 2, t / (6 * each), each));
    assert.deepEqual(seen, { verdict: null, strained: needs > WHOLE / 1000 + 0.1 }, String(each));
  }
  // A machine a hundred times as slow is given up, and still it is the machine's fault.
  const { verdict } = watch("grade", 600, (t) => pulse(t / 2, t / 0.6, 0.1));
  assert.equal(verdict, "busy");
});

test("one that only says that it lives is ended all the same", () => {
  const { verdict } = watch("grade", 60, (t) => ({ event: "start", id: "x", number: 1, of: 2, title: String(t) }));
  assert.equal(verdict, "busy");
});

test("time in which the machine stood still does not count", () => {
  const lived = new Lived(0);
  for (let now = 100; now <= 1000; now += 100) lived.at(now);
  assert.equal(lived.at(3_601_000), 1300); // an hour asleep
  assert.equal(lived.at(3_601_100), 1400);
  assert.equal(lived.at(3_601_050), 1400); // a clock that was set back
  // A hidden page is asked once a second, and that is all of it.
  assert.equal(new Lived(0).at(1000, true), 1000);
});
