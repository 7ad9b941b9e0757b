// Tensors as safetensors: eight bytes with the length of the JSON header, the header, the values.

const KINDS = { F32: Float32Array, U8: Uint8Array, I32: Int32Array };

/** @typedef {{ shape: number[], data: Float32Array | Uint8Array | Int32Array }} Tensor */

/** @param {ArrayBuffer} buffer @returns {Record<string, Tensor>} */
export function unpack(buffer) {
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  /** @type {Record<string, Tensor>} */
  const tensors = {};
  for (const [name, { dtype, shape, data_offsets: [first, last] }] of Object.entries(head)) {
    if (name === "__metadata__") continue;
    const bytes = buffer.slice(8 + length + first, 8 + length + last);
    tensors[name] = { shape, data: new KINDS[dtype](bytes) };
  }
  return tensors;
}

/** @param {Record<string, Tensor>} tensors of float32 @returns {ArrayBuffer} */
export function pack(tensors) {
  /** @type {Record<string, object>} */
  const head = {};
  let size = 0;
  for (const [name, { shape, data }] of Object.entries(tensors)) {
    head[name] = { dtype: "F32", shape, data_offsets: [size, size + 4 * data.length] };
    size += 4 * data.length;
  }
  let text = JSON.stringify(head);
  text += " ".repeat((8 - (text.length % 8)) % 8);
  const buffer = new ArrayBuffer(8 + text.length + size);
  new DataView(buffer).setBigUint64(0, BigInt(text.length), true);
  new Uint8Array(buffer, 8).set(new TextEncoder().encode(text));
  let place = 8 + text.length;
  for (const { data } of Object.values(tensors)) {
    new Float32Array(buffer, place, data.length).set(data);
    place += 4 * data.length;
  }
  return buffer;
}
