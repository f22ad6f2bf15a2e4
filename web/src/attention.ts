// The JavaScript twin of qkv.plain: one query, some keys, some values, every step kept.
//
// Python is the definition. tests/test_javascript_twin.py runs this file beside it and holds every number, name and
// formula to what Python says; the figures and the trace import attention from here and from nowhere else.

export type Vector = number[];

export interface Steps {
  dotProducts: number[];
  scaledScores: number[];
  maskedScores: (number | null)[];
  maximum: number;
  shiftedScores: (number | null)[];
  exponentials: number[];
  sum: number;
  weights: number[];
  contributions: Vector[];
  context: Vector;
}

/** The sum, rounded once: Shewchuk's partial sums, as in Python's math.fsum. */
export function exactSum(numbers: Iterable<number>): number {
  const partials: number[] = [];
  for (let x of numbers) {
    if (!Number.isFinite(x)) return [...numbers].reduce((a, b) => a + b, 0);
    let kept = 0;
    for (let y of partials) {
      if (Math.abs(x) < Math.abs(y)) [x, y] = [y, x];
      const high = x + y;
      const low = y - (high - x);
      if (low !== 0) partials[kept++] = low;
      x = high;
    }
    partials.length = kept;
    partials.push(x);
  }
  let total = partials.pop() ?? 0;
  let low = 0;
  while (partials.length) {
    const before = total;
    const y = partials.pop()!;
    total = before + y;
    low = y - (total - before);
    if (low !== 0) break;
  }
  // Half-way cases are rounded to even by the sign of what follows.
  const next = partials[partials.length - 1];
  if (next !== undefined && ((low < 0 && next < 0) || (low > 0 && next > 0))) {
    const doubled = low * 2;
    const moved = total + doubled;
    if (doubled === moved - total) total = moved;
  }
  return total;
}

/** Beyond the largest float it is -Infinity where no product pulls up, and Infinity otherwise. */
export function dot(query: Vector, key: Vector): number {
  const products = query.map((q, d) => q * key[d]);
  const total = exactSum(products);
  if (Number.isFinite(total)) return total;
  return Math.max(...products) <= 0 ? -Infinity : Infinity;
}

/** The weighted sum, never outside the range of the numbers it mixes. */
export function mixture(weights: number[], numbers: number[]): number {
  const half = exactSum(weights.map((weight, j) => (weight * numbers[j]) / 2));
  const mixed = numbers.filter((_, j) => weights[j] > 0);
  return Math.min(Math.max(2 * half, Math.min(...mixed)), Math.max(...mixed));
}

export class AttentionError extends Error {}

export function attentionSteps(query: Vector, keys: Vector[], values: Vector[], allowed: boolean[]): Steps {
  if (!allowed.some(Boolean)) {
    throw new AttentionError("no key is allowed: there is no distribution over nothing");
  }
  const width = query.length;
  const dotProducts = keys.map((key) => dot(query, key));
  const scaledScores = dotProducts.map((product) => product / Math.sqrt(width));
  const rest = softmaxSteps(scaledScores, allowed);
  const contributions = values.map((value, j) => value.map((number) => rest.weights[j] * number));
  const context = values[0].map((_, e) => mixture(rest.weights, values.map((value) => value[e])));
  return { dotProducts, scaledScores, ...rest, contributions, context };
}

export type Softmax = Pick<
  Steps,
  "maskedScores" | "maximum" | "shiftedScores" | "exponentials" | "sum" | "weights"
>;

/** From scores to weights, over the allowed keys only. */
export function softmaxSteps(scores: number[], allowed: boolean[] = scores.map(() => true)): Softmax {
  const maskedScores = scores.map((score, j) => (allowed[j] ? score : null));
  const maximum = Math.max(...maskedScores.filter((score) => score !== null));
  if (!Number.isFinite(maximum)) throw new AttentionError("an allowed score overflows");
  const shiftedScores = maskedScores.map((score) => (score === null ? null : score - maximum));
  const exponentials = shiftedScores.map((shifted) => (shifted === null ? 0 : Math.exp(shifted)));
  const sum = exactSum(exponentials);
  const weights = exponentials.map((exponential) => exponential / sum);
  return { maskedScores, maximum, shiftedScores, exponentials, sum, weights };
}

/** What a softmax without the subtraction would compute; it overflows, and that is what it is shown for. */
export function naiveSoftmax(scores: number[]): { exponentials: number[]; sum: number; weights: number[] } {
  const exponentials = scores.map((score) => Math.exp(score));
  const sum = exponentials.reduce((a, b) => a + b, 0);
  return { exponentials, sum, weights: exponentials.map((exponential) => exponential / sum) };
}

/** How far each key goes along the output: w·(v · o) / (o · o); all shares add up to 1. NaN where the output is 0. */
export function shares(weights: number[], values: Vector[], output: Vector): number[] {
  const size = exactSum(output.map((o) => o * o));
  return values.map((value, j) => {
    const along = weights[j] * exactSum(value.map((number, e) => number * output[e]));
    return size > 0 ? along / size : NaN;
  });
}

/** How far the output would move if one key alone were forbidden, in lengths of the output. NaN for the only key. */
export function influences(scores: number[], values: Vector[], allowed: boolean[]): number[] {
  const output = (mask: boolean[]): Vector => {
    const { weights } = softmaxSteps(scores, mask);
    return values[0].map((_, e) => mixture(weights, values.map((value) => value[e])));
  };
  const whole = output(allowed);
  const size = Math.hypot(...whole);
  return scores.map((_, j) => {
    if (!allowed[j]) return 0;
    const without = allowed.map((may, i) => may && i !== j);
    if (!without.some(Boolean) || size === 0) return NaN;
    const moved = output(without);
    return Math.hypot(...moved.map((o, e) => o - whole[e])) / size;
  });
}

// Masks: True means that this query may read this key --------------------------------------------------------------

export type Mask = boolean[][];

/** Query i reads keys 0 … i, itself included. */
export function causal(length: number): Mask {
  return grid(length, (i, j) => j <= i);
}

/** Query i reads `before` keys before itself, itself, and `after` behind it. */
export function window(length: number, before: number, after: number): Mask {
  return grid(length, (i, j) => j >= i - before && j <= i + after);
}

/** Keys that are padding are read by nobody. */
export function padding(length: number, real: boolean[]): Mask {
  return grid(length, (_, j) => real[j]);
}

export function both(a: Mask, b: Mask): Mask {
  return a.map((row, i) => row.map((may, j) => may && b[i][j]));
}

function grid(length: number, rule: (i: number, j: number) => boolean): Mask {
  return Array.from({ length }, (_, i) => Array.from({ length }, (_, j) => rule(i, j)));
}

export function firstEmptyRow(mask: Mask): number {
  return mask.findIndex((row) => !row.some(Boolean));
}
