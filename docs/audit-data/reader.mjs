// Reads the data form of `qkv audit` and answers it, in plain JavaScript.
//   node reader.mjs DIR     check the attention function below against the cases of `qkv audit export DIR`
//   node reader.mjs FOLDER  answer one call: qkv audit "run:node reader.mjs" --accepts mask,causal,lse,…
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, part = bits & 1023;
  if (exponent === 31) return part ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + part / 1024) : 2 ** -24 * part);
}
const brain = (bits) => new Float32Array(new Uint32Array([bits << 16]).buffer)[0];
const kinds = { F64: Float64Array, F32: Float32Array, F16: Uint16Array, BF16: Uint16Array, BOOL: Uint8Array, I64: BigInt64Array, I32: Int32Array };
const widen = { F16: half, BF16: brain, I64: Number };

export function readTensors(path) {
  const file = readFileSync(path);
  const size = Number(file.readBigUInt64LE(0));
  const out = {};
  for (const [name, { dtype, shape, data_offsets }] of Object.entries(JSON.parse(file.toString("utf8", 8, 8 + size)))) {
    const bytes = file.subarray(8 + size + data_offsets[0], 8 + size + data_offsets[1]);
    const raw = Array.from(new kinds[dtype](new Uint8Array(bytes).buffer));
    out[name] = { shape, data: widen[dtype] ? raw.map(widen[dtype]) : raw };
  }
  return out;
}

export function writeTensors(path, tensors) {
  const head = {}, parts = [];
  let at = 0;
  for (const [name, { shape, data }] of Object.entries(tensors)) {
    const bytes = Buffer.from(Float64Array.from(data).buffer);
    head[name] = { dtype: "F64", shape, data_offsets: [at, (at += bytes.length)] };
    parts.push(bytes);
  }
  const text = Buffer.from(JSON.stringify(head)), size = Buffer.alloc(8);
  size.writeBigUInt64LE(BigInt(text.length));
  writeFileSync(path, Buffer.concat([size, text, ...parts]));
}

// The kernel under test: put your own here. It gets the fields of call.json and the tensors.
export function attention(call, { query, key, value, mask, bias, lengths }) {
  const [B, H, L, D] = query.shape, [, G, S] = key.shape, E = value.shape[3];
  if (key.shape[0] !== B || key.shape[3] !== D || value.shape[2] !== S || H % G) throw new Error("query, key and value do not fit");
  if (call.causal && L !== S && L && S && !call.align) throw new Error("say align: causal with L != S can mean two things");
  const scale = call.scale ?? 1 / Math.sqrt(D);
  const output = new Float64Array(B * H * L * E), lse = new Float64Array(B * H * L).fill(-Infinity);
  const pick = (array, b, h, i, j) => {
    const index = [b, h, i, j].slice(4 - array.shape.length);
    return array.data[array.shape.reduce((sum, n, axis) => sum * n + (n > 1 ? index[axis] : 0), 0)];
  };
  for (let b = 0; b < B; b++) for (let h = 0; h < H; h++) for (let i = 0; i < L; i++) {
    const held = lengths ? lengths.data[b] : S, g = Math.floor((h * G) / H);
    const position = call.align === "end" && L !== S ? i + held - L : i;
    const scores = new Map();
    for (let j = 0; j < held; j++) {
      if ((mask && !pick(mask, b, h, i, j)) || (call.causal && j > position)) continue;
      let dot = 0;
      for (let d = 0; d < D; d++) dot += query.data[((b * H + h) * L + i) * D + d] * key.data[((b * G + g) * S + j) * D + d];
      const score = scale * dot + (bias ? pick(bias, b, h, i, j) : 0);
      if (score !== -Infinity) scores.set(j, score);
    }
    const top = Math.max(...scores.values());
    let sum = 0;
    for (const score of scores.values()) sum += Math.exp(score - top);
    if (scores.size) lse[(b * H + h) * L + i] = top + Math.log(sum);
    for (const [j, score] of scores) for (let e = 0; e < E; e++)
      output[((b * H + h) * L + i) * E + e] += (Math.exp(score - top) / sum) * value.data[((b * G + g) * S + j) * E + e];
  }
  return { output: { shape: [B, H, L, E], data: output }, lse: { shape: [B, H, L], data: lse } };
}
const CAN = { tensors: ["query", "key", "value", "mask", "bias", "lengths"], fields: ["window", "prefix", "where", "softcap", "key_dtype"], wants: ["lse"] };

const far = (got, want, tolerance) => (Number.isFinite(want) ? !(Math.abs(got - want) <= tolerance) : !Object.is(got, want));
const differs = (got, want, tolerance, rows) => {
  const [B, H, L, ...rest] = got.shape, width = rest[0] ?? 1, judged = rows ?? Array.from({ length: L }, (_, i) => i);
  const data = Array.from({ length: B * H }, (_, n) => judged.map((i) => Array.from({ length: width }, (_, e) => got.data[(n * L + i) * width + e]))).flat(2);
  return data.length !== want.data.length || data.some((x, at) => far(x, want.data[at], tolerance.data[at]));
};
function check(folder) {
  const call = JSON.parse(readFileSync(join(folder, "call.json"), "utf8")), tensors = readTensors(join(folder, "call.safetensors"));
  const cannot = call.tensors.find((n) => !CAN.tensors.includes(n)) ?? CAN.fields.find((n) => call[n] !== null) ?? call.wants.find((n) => !CAN.wants.includes(n));
  if (cannot) return "cannot express";
  let got;
  try { got = attention(call, tensors); } catch { return call.expect === "answer" ? "refuses" : "keeps"; }
  const right = readTensors(join(folder, "right.safetensors")), asked = ["output", ...call.wants];
  if (call.expect !== "refusal" && !asked.some((n) => differs(got[n], right[n], right[`${n}.tolerance`], call.rows))) return "keeps";
  const other = call.other.find((_, n) => !differs(got.output, right[`other.${n}.output`], right[`other.${n}.output.tolerance`], call.rows));
  if (other) return `differs: ${other}`;
  return call.expect === "refusal" ? "differs: answered instead of refused" : "wrong";
}

const place = process.argv[2];
if (existsSync(join(place, "index.json"))) {
  for (const { folder } of JSON.parse(readFileSync(join(place, "index.json"), "utf8")).calls) console.log(`${folder}  ${check(join(place, folder))}`);
} else {
  const call = JSON.parse(readFileSync(join(place, "call.json"), "utf8"));
  try { writeTensors(join(place, "answer.safetensors"), attention(call, readTensors(join(place, "call.safetensors")))); }
  catch (problem) { writeFileSync(join(place, "refusal.txt"), problem.message); }
}
