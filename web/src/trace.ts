// The ten steps of attention in words: the twin of qkv.trace. Names, formulas, code and sentences are held to Python's.

import { attentionSteps, type Vector } from "./attention.ts";
import { number, vector } from "./numbers.ts";

export interface Example {
  query: Vector;
  keys: Vector[];
  values: Vector[];
  mask: boolean[];
}

export interface Step {
  name: string;
  formula: string;
  code: string;
  explanation: string;
  numbers: number | (number | null)[] | Vector[];
}

export function traceSteps({ query, keys, values, mask }: Example): Step[] {
  const t = attentionSteps(query, keys, values, mask);
  const width = query.length;
  const count = keys.length;
  const readable = mask.filter(Boolean).length;
  const heaviest = t.weights.indexOf(Math.max(...t.weights));
  return [
    {
      name: "dot products",
      formula: "q · kⱼ",
      code: "dot_products = [dot(query, key) for key in keys]",
      explanation:
        "Query and key are multiplied coordinate by coordinate and added up: the better they agree, the more.",
      numbers: t.dotProducts,
    },
    {
      name: "scaled scores",
      formula: `sⱼ = (q · kⱼ) / √${width}`,
      code: "scaled_scores = [product / math.sqrt(width) for product in dot_products]",
      explanation:
        `Dividing by the square root of the key width, √${width} = ${number(Math.sqrt(width))}, keeps scores from ` +
        "growing with the width.",
      numbers: t.scaledScores,
    },
    {
      name: "masked scores",
      formula: "sⱼ where allowed, else nothing",
      code: "masked_scores = [score if may else None for score, may in zip(scaled_scores, allowed, strict=True)]",
      explanation:
        `The query may read ${readable} of ${count} ${count === 1 ? "key" : "keys"}; a forbidden score is taken out, ` +
        "not replaced by a very negative number.",
      numbers: t.maskedScores,
    },
    {
      name: "maximum",
      formula: "m = max sⱼ",
      code: "maximum = max(score for score in masked_scores if score is not None)",
      explanation:
        `The largest score the query may see is ${number(t.maximum)}, and a forbidden score has no part in it.`,
      numbers: t.maximum,
    },
    {
      name: "shifted scores",
      formula: "sⱼ − m",
      code: "shifted_scores = [None if score is None else score - maximum for score in masked_scores]",
      explanation:
        "With the maximum subtracted the largest score is 0, so that no exponential can overflow, and the weights " +
        "stay the same.",
      numbers: t.shiftedScores,
    },
    {
      name: "exponentials",
      formula: "eⱼ = exp(sⱼ − m)",
      code: "exponentials = [0.0 if shifted is None else math.exp(shifted) for shifted in shifted_scores]",
      explanation:
        "The exponential makes every score positive and a difference of scores a ratio; a forbidden key has exactly 0.",
      numbers: t.exponentials,
    },
    {
      name: "sum",
      formula: "Σ = e₀ + e₁ + …",
      code: "total = math.fsum(exponentials)",
      explanation: `Together the exponentials are ${number(t.sum)}, at least 1 because the largest of them is 1.`,
      numbers: t.sum,
    },
    {
      name: "weights",
      formula: "wⱼ = eⱼ / Σ",
      code: "weights = [exponential / total for exponential in exponentials]",
      explanation:
        `Divided by their sum they add up to 1, and key ${heaviest} has the largest share, ` +
        `${number(t.weights[heaviest])}.`,
      numbers: t.weights,
    },
    {
      name: "contributions",
      formula: "wⱼ vⱼ",
      code:
        "contributions = [[weight * number for number in value] for weight, value in zip(weights, values, " +
        "strict=True)]",
      explanation: "Each value is shrunk by its weight, and what is left of it is what its key contributes.",
      numbers: t.contributions,
    },
    {
      name: "context",
      formula: "o = w₀ v₀ + w₁ v₁ + …",
      code: "context = [mixture(weights, numbers) for numbers in zip(*values, strict=True)]",
      explanation: `The contributions add up to the context, ${fitted(t.context, 40)}.`,
      numbers: t.context,
    },
  ];
}

/** The numbers in brackets in at most `room` characters; what does not fit is one ellipsis. */
function fitted(numbers: Vector, room: number): string {
  const parts: string[] = [];
  let used = 1;
  for (const [i, x] of numbers.entries()) {
    const text = number(x);
    if (used + text.length + (i === numbers.length - 1 ? 1 : 4) > room) return `[${[...parts, "…"].join(", ")}]`;
    parts.push(text);
    used += text.length + 2;
  }
  return vector(numbers);
}
