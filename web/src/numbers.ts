// Numbers as qkv.trace writes them: at most 9 characters, 0.000 only for 0 itself.

export function number(x: number): string {
  if (Number.isNaN(x)) return "NaN";
  if (!Number.isFinite(x)) return x > 0 ? "inf" : "-inf";
  if (x === 0) return "0.000";
  const size = Math.abs(x);
  return size >= 0.001 && size < 9999 ? thousandths(x) : exponent(x);
}

/** Three decimals; a tie goes to the even digit as in Python, where toFixed takes the larger. */
function thousandths(x: number): string {
  const scaled = x * 1000;
  if (!Number.isInteger(x * 16) || Math.abs(scaled % 1) !== 0.5) return x.toFixed(3);
  return (2 * Math.round(scaled / 2) / 1000).toFixed(3);
}

/** A whole number as people write it. */
export function given(x: number): string {
  if (Math.abs(x) < 1e5 && Number.isInteger(x)) return String(x === 0 ? 0 : x);
  const size = Math.abs(x);
  return size >= 0.001 && size < 9999 ? number(x).replace(/\.?0+$/, "") : number(x);
}

function exponent(x: number): string {
  return x.toExponential(1).replace(/e([+-])(\d)$/, "e$10$2");
}

export function vector(numbers: number[], write: (x: number) => string = number): string {
  return `[${numbers.map(write).join(", ")}]`;
}

/** Running text has a real minus sign, and a short list of numbers is one thing that no line breaks. */
export function typeset(text: string): string {
  return text
    .replace(/(^|[^\w])-(?=[\d.i])/g, "$1−")
    .replace(/\[[^[\]]{1,24}\]/g, (list) => list.replace(/, /g, ",\u00a0"));
}
