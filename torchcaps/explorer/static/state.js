// The state of the page in the URL: fields with types and ranges; other values become the
// default.

const number = (least, most, start, digits = 2) => ({
  start,
  read: (text) => {
    const value = Number(text);
    return text !== "" && Number.isFinite(value) ? Math.min(most, Math.max(least, value)) : start;
  },
  write: (value) => String(Number(value.toFixed(digits))),
});
const word = (pattern) => ({
  start: "",
  read: (text) => (pattern.test(text) ? text : ""),
  write: (value) => value,
});
const list = (most) => ({
  start: [],
  read: (text) => text.split(",").slice(0, most).map(Number).map((v) => (Number.isFinite(v) ? v : 0)),
  write: (values) => values.map((v) => Number(v.toFixed(3))).join(","),
});

export const FIELDS = {
  a: word(/^[\w:.-]{1,120}$/),
  b: word(/^[\w:.-]{1,120}$/),
  i: number(0, 1e7, 0, 0),
  rot: number(-180, 180, 0, 1),
  sc: number(0.4, 1.8, 1),
  sh: number(-1, 1, 0),
  x: number(-14, 14, 0, 1),
  y: number(-14, 14, 0, 1),
  oc: number(0, 1, 0),
  no: number(0, 1, 0),
  cls: number(-1, 10000, -1, 0),
  dim: number(0, 1000, 0, 0),
  d: list(64),
  pass: number(0, 99, 0, 0),
  hide: word(/^[0-9a-f]{0,512}$/),
  pic: word(/^[\w-]{0,1200}$/),
  thr: number(-1, 0.95, -1), // -1: as many edges as can be told apart
  pre: number(0, 1, 0),
  mask: word(/^(off)?$/),
  gam: number(-1, 1000, -1),
  out: word(/^[0-9a-f]{0,64}$/),
  kind: word(/^(rotation|shear_x|shear_y|scale|shift_x|shift_y)$/),
};

export function readHash(text) {
  const params = new URLSearchParams(text.replace(/^#/, ""));
  const state = {};
  for (const [name, field] of Object.entries(FIELDS)) {
    const text = params.get(name);
    state[name] = text === null ? field.start : field.read(text);
  }
  return state;
}

export function writeHash(state) {
  const params = new URLSearchParams({ v: "1" });
  for (const [name, field] of Object.entries(FIELDS)) {
    const text = field.write(state[name]);
    if (text !== "" && text !== field.write(field.start)) params.set(name, text);
  }
  return `#${params}`.replaceAll("%3A", ":").replaceAll("%2C", ",");
}

/** Bits (hidden patches, excluded capsules) as hexadecimal digits. */
export function bitsToHex(bits) {
  let text = "";
  for (let n = 0; n < bits.length; n += 4) {
    text += [0, 1, 2, 3].reduce((sum, k) => sum + (bits[n + k] ? 1 << k : 0), 0).toString(16);
  }
  return text.replace(/0+$/, "");
}

export function hexToBits(text, length) {
  return Array.from({ length }, (_, n) => (parseInt(text[n >> 2] || "0", 16) >> (n & 3)) & 1);
}

/** A 28x28 drawing in 16 gray levels as URL-safe base64. */
export function imageToText(image) {
  const bytes = new Uint8Array(392);
  image.data.forEach((v, n) => { bytes[n >> 1] |= Math.round(15 * v) << (n & 1 ? 4 : 0); });
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

export function textToImage(text) {
  try {
    const bytes = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
    if (bytes.length !== 392) return null;
    const data = new Float32Array(784);
    data.forEach((_, n) => { data[n] = ((bytes.charCodeAt(n >> 1) >> (n & 1 ? 4 : 0)) & 15) / 15; });
    return { shape: [1, 28, 28], data };
  } catch {
    return null;
  }
}
