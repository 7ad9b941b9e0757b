// Requests to the server. An exported page has backend-static.js with the same functions.

import { pack, unpack } from "./tensors.js";

/** An error with its message and HTTP status; status 0: the server is not reachable. */
export class Refused extends Error {
  constructor(/** @type {string} */ message, /** @type {number} */ status) {
    super(message);
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
  if (answer.status === 202) throw new Refused("It is being computed.", 202);
  if (!answer.ok) {
    const body = await answer.json().catch(() => ({ error: `Error ${answer.status}.` }));
    throw new Refused(body.error, answer.status);
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
  /** Start an accuracy curve; `report` gets its status at each point. Returns a function that cancels it. */
  curve: async (/** @type {string} */ id, /** @type {string} */ kind, report) => {
    const query = new URLSearchParams({ run: id, transformation: kind });
    const { job } = await (await call(`api/jobs?${query}`, { method: "POST" })).json();
    const events = new EventSource(`api/jobs/${job}`);
    events.onmessage = (event) => {
      const status = JSON.parse(event.data);
      if (!["waiting", "running"].includes(status.state)) events.close();
      report(status);
    };
    events.onerror = () => events.close();
    return () => {
      events.close();
      call(`api/jobs/${job}`, { method: "DELETE" }).catch(() => {});
    };
  },
};
