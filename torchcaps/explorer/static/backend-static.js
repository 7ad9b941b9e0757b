// The functions of backend.js without a server: ONNX graphs, run in the page by onnxruntime-web.

import { unpack } from "./tensors.js";

/** An error with its message and status, as in backend.js. */
export class Refused extends Error {
  constructor(/** @type {string} */ message, /** @type {number} */ status) {
    super(message);
    this.status = status;
  }
}

const inside = document.getElementById("files");
const packed = inside ? JSON.parse(inside.textContent) : null;

/** A file of this page: embedded in the page, or in its folder. */
async function file(/** @type {string} */ name) {
  if (!packed) {
    const answer = await fetch(name);
    if (!answer.ok) throw new Refused(`${name} is missing in the folder of this page.`, answer.status);
    return answer.arrayBuffer();
  }
  const bytes = Uint8Array.from(atob(packed[name]), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

const once = (make) => {
  let made;
  return () => (made ??= make());
};

const manifest = once(async () => JSON.parse(new TextDecoder().decode(await file("manifest.json"))));

const runtime = once(async () => {
  const ort = await import("./runtime/ort.wasm.bundle.min.mjs");
  ort.env.wasm.numThreads = 1; // more threads need headers that a plain web server does not send
  ort.env.wasm.wasmBinary = await file("runtime/ort-wasm-simd-threaded.wasm");
  return ort;
});

/** @type {Map<string, Promise<any>>} */
const kept = new Map();
const keep = (name, make) => {
  if (!kept.has(name)) kept.set(name, make());
  return kept.get(name);
};

async function place(id) {
  const all = await manifest(), number = all.findIndex((m) => m.id === id);
  if (number < 0) throw new Refused(`Unknown run ${id}.`, 404);
  return { model: all[number], folder: `models/${number}` };
}

const session = (folder, question) => keep(`${folder}/${question}`, async () => {
  const ort = await runtime();
  const weights = await keep(`${folder}/weights`, () => file(`${folder}/weights.bin`));
  const graph = await file(`${folder}/${question}.onnx`);
  const externalData = [{ path: "weights.bin", data: new Uint8Array(weights) }];
  return ort.InferenceSession.create(new Uint8Array(graph), { externalData });
});

let turn = Promise.resolve(); // one run at a time: there is only one thread

/** Free-form inference by Adam, as on the server: after each step the best result so far. */
async function searched(ask, image, steps = 30, rate = 0.01) {
  const { flat, ...frame } = await ask("steps-start", { image });
  const size = flat.data.length, mean = new Float64Array(size), square = new Float64Array(size);
  const now = { shape: flat.shape, data: Float32Array.from(flat.data) }, curve = [], drawn = [], coloured = [];
  let best = null;
  for (let step = 0; step <= steps; step++) {
    const result = await ask("steps-next", { image, flat: now, ...frame });
    if (!best || result.height.data[0] > best.height.data[0]) best = result;
    curve.push(best.height.data[0]);
    drawn.push(best.drawn);
    coloured.push(best.coloured);
    for (let n = 0; n < size; n++) {
      const slope = -result.slope.data[n];
      mean[n] = 0.9 * mean[n] + 0.1 * slope;
      square[n] = 0.999 * square[n] + 0.001 * slope * slope;
      now.data[n] -= (rate * mean[n]) / (1 - 0.9 ** (step + 1)) / (Math.sqrt(square[n] / (1 - 0.999 ** (step + 1))) + 1e-8);
    }
  }
  const stacked = (list) => {
    const data = new Float32Array(list.length * list[0].data.length);
    list.forEach((t, n) => data.set(t.data, n * t.data.length));
    return { shape: [list.length, ...list[0].shape], data };
  };
  return { "adam.curve": { shape: [curve.length], data: Float32Array.from(curve) }, "adam.drawn": stacked(drawn), "adam.coloured": stacked(coloured) };
}

export const backend = {
  runs: async () => (await manifest()).map(({ id, name, recipe, data }) => ({ id, name, recipe, data })),
  about: async (id) => (await place(id)).model,
  images: async (id, start, n = 32) => {
    const { folder } = await place(id);
    const all = unpack(await keep(`${folder}/images`, () => file(`${folder}/images.bin`)));
    const [count, ...shape] = all.images.shape, size = shape.reduce((p, q) => p * q, 1);
    const last = Math.min(count, start + n), first = Math.min(start, last);
    return {
      images: { shape: [last - first, ...shape], data: all.images.data.subarray(first * size, last * size) },
      labels: { shape: [last - first], data: all.labels.data.subarray(first, last) },
      count: all.count,
    };
  },
  ask: async (id, question, inputs) => {
    if (question === "steps") return searched((name, more) => backend.ask(id, name, more), inputs.image);
    const { model, folder } = await place(id);
    const made = await session(folder, question), ort = await runtime();
    const feeds = {};
    for (const [name, { shape, data }] of Object.entries(inputs)) feeds[name] = new ort.Tensor("float32", data, shape);
    if (question === "hide") {
      const hidden = inputs.hidden.data, all = hidden.every((v) => v > 0.5);
      const rows = [...hidden.keys()].filter((n) => all || hidden[n] <= 0.5);
      if (all) feeds.hidden = new ort.Tensor("float32", new Float32Array(hidden.length), inputs.hidden.shape);
      feeds.rows = new ort.Tensor("int64", BigInt64Array.from(rows, BigInt), [1, rows.length]);
    }
    const result = await (turn = turn.catch(() => {}).then(() => made.run(feeds)));
    return Object.fromEntries(model.graphs[question].outputs.map((name) => {
      const { dims, data } = result[name];
      return [name, { shape: [...dims], data: data instanceof BigInt64Array ? Float32Array.from(data, Number) : data }];
    }));
  },
  picture: async (id, /** @type {Blob} */ blob) => {
    const [channels, height, width] = (await place(id)).model.image;
    let bitmap;
    try {
      bitmap = await createImageBitmap(blob);
    } catch {
      throw new Refused("This file is not an image that the browser can read.", 422);
    }
    const canvas = new OffscreenCanvas(width, height), context = canvas.getContext("2d");
    const scale = Math.max(width / bitmap.width, height / bitmap.height);
    const [w, h] = [bitmap.width * scale, bitmap.height * scale];
    context.drawImage(bitmap, (width - w) / 2, (height - h) / 2, w, h);
    const rgba = context.getImageData(0, 0, width, height).data, size = height * width;
    const data = new Float32Array(channels * size);
    for (let i = 0; i < size; i++) {
      const [r, g, b] = rgba.subarray(4 * i, 4 * i + 3);
      if (channels === 3) [r, g, b].forEach((v, k) => { data[k * size + i] = v / 255; });
      else data[i] = (0.299 * r + 0.587 * g + 0.114 * b) / 255;
    }
    return { shape: [channels, height, width], data };
  },
  curve: async (id, kind, report) => {
    const { model } = await place(id), points = model.curves[kind] ?? { x: [], y: [] };
    setTimeout(() => report({ state: "done", total: points.x.length, ...points }), 0);
    return () => {};
  },
};
