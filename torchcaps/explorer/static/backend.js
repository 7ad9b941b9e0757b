// The server's answers; a page without a server has another file with the same functions.

import { pack, unpack } from "./tensors.js";

/** A sentence of the server, and whether asking again may help. */
export class Refused extends Error {
  constructor(/** @type {string} */ sentence, /** @type {number} */ status) {
    super(sentence);
    this.status = status;
  }
}

/** @returns {Promise<Response>} */
async function call(/** @type {string} */ path, /** @type {RequestInit} */ options = {}) {
  const headers = { "X-Torchcaps": "1", ...(options.headers || {}) };
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch (error) {
    if (options.signal && options.signal.aborted) throw error;
    throw new Refused("The explorer does not answer. Is it still running?", 0);
  }
  if (!answer.ok) {
    const said = await answer.json().catch(() => ({ error: `Error ${answer.status}.` }));
    throw new Refused(said.error, answer.status);
  }
  return answer;
}

const run = (/** @type {string} */ id) => `api/runs/${encodeURIComponent(id)}`;
const binary = { "Content-Type": "application/octet-stream" };

export const backend = {
  runs: async () => (await call("api/runs")).json(),
  about: async (/** @type {string} */ id) => (await call(run(id))).json(),
  images: async (/** @type {string} */ id, /** @type {number} */ start, n = 32) =>
    unpack(await (await call(`${run(id)}/images?start=${start}&n=${n}`)).arrayBuffer()),
  ask: async (/** @type {string} */ id, /** @type {string} */ question, tensors) => {
    const options = { method: "POST", body: pack(tensors), headers: binary };
    return unpack(await (await call(`${run(id)}/${question}`, options)).arrayBuffer());
  },
  picture: async (/** @type {string} */ id, /** @type {Blob} */ file) => {
    const options = { method: "POST", body: file, headers: binary };
    return unpack(await (await call(`${run(id)}/image`, options)).arrayBuffer()).image;
  },
  /** A curve in the background: each step is told; the function that comes back cancels it. */
  curve: async (/** @type {string} */ id, /** @type {string} */ kind, told) => {
    const words = new URLSearchParams({ run: id, transformation: kind });
    const { job } = await (await call(`api/jobs?${words}`, { method: "POST" })).json();
    const events = new EventSource(`api/jobs/${job}`);
    events.onmessage = (event) => {
      const said = JSON.parse(event.data);
      if (!["waiting", "running"].includes(said.state)) events.close();
      told(said);
    };
    events.onerror = () => events.close();
    return () => {
      events.close();
      call(`api/jobs/${job}`, { method: "DELETE" }).catch(() => {});
    };
  },
};
