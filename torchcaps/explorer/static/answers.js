// Helpers for panels: parts of tensors, buttons and sliders.

import { make } from "./draw.js";

export const argmax = (values) => values.reduce((best, v, n) => (v > values[best] ? n : best), 0);
export const className = (side, n) => side.about.classes[n] ?? String(n);

/** The n-th row of a tensor along its first axis. */
export const per = (tensor, n) => {
  const size = tensor.data.length / tensor.shape[0];
  return tensor.data.subarray(n * size, (n + 1) * size);
};

/** A button with a label and a click handler. */
export function step(text, label, go) {
  const button = make("button", { type: "button", "aria-label": label }, text);
  button.addEventListener("click", go);
  return button;
}

/** A slider between its name and its value. */
export function slider(name, { min, max, step: by, value, text, change }) {
  const input = make("input", { type: "range", min, max, step: by, value, "aria-label": name });
  const output = make("output", {}, text(Number(value)));
  input.addEventListener("input", () => { output.textContent = text(Number(input.value)); change(Number(input.value)); });
  const show = (now) => { if (document.activeElement !== input) input.value = String(now); output.textContent = text(now); };
  return { element: make("label", { class: "slider" }, name, input, output), input, show };
}
