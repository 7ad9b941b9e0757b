// Panels of models without labels: hidden patches, capsule ranks, parts and objects, free-form inference.

import { argmax, per, slider, step } from "./answers.js";
import { bars, lines, make, matrix, picture, pixels } from "./draw.js";
import { bitsToHex, hexToBits } from "./state.js";

export function hide(side, page) {
  const [channels, height, width] = side.about.image, patch = side.about.patch;
  const rows = height / patch, columns = width / patch, size = 20;
  const grid = make("div", { class: "patches", role: "grid", "aria-label": "patches: press space to hide or show one" });
  grid.style.gridTemplateColumns = `repeat(${columns}, ${size}px)`;
  grid.style.backgroundSize = "100% 100%";
  const buttons = [];
  const bits = () => hexToBits(page.state.hide, rows * columns);
  const toggle = (n, to) => { const b = bits(); b[n] = to ?? (b[n] ? 0 : 1); page.set({ hide: bitsToHex(b) }); };
  let painting = null;
  for (let r = 0; r < rows; r++) {
    const row = make("div", { role: "row" });
    row.style.display = "contents";
    for (let c = 0; c < columns; c++) {
      const n = r * columns + c;
      const button = make("button", { type: "button", role: "gridcell", tabindex: n ? -1 : 0, "aria-label": `row ${r + 1}, column ${c + 1}`, "data-patch": n });
      button.style.width = button.style.height = `${size}px`;
      button.addEventListener("pointerdown", (event) => { event.preventDefault(); painting = bits()[n] ? 0 : 1; toggle(n, painting); });
      button.addEventListener("pointerenter", () => painting !== null && toggle(n, painting));
      button.addEventListener("keydown", (event) => {
        const go = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
        if (go && buttons[n + go]) { buttons.forEach((b) => { b.tabIndex = -1; }); buttons[n + go].tabIndex = 0; buttons[n + go].focus(); event.preventDefault(); event.stopPropagation(); }
        if (event.key === " ") { toggle(n); event.preventDefault(); event.stopPropagation(); }
      });
      buttons.push(button);
      row.append(button);
    }
    grid.append(row);
  }
  addEventListener("pointerup", () => { painting = null; });
  const some = make("button", { type: "button" }, "hide half at random");
  some.addEventListener("click", () => {
    const order = buttons.map((_, n) => n).sort(() => Math.random() - 0.5);
    const b = new Array(buttons.length).fill(0);
    order.slice(0, Math.floor(b.length / 2)).forEach((n) => { b[n] = 1; });
    page.set({ hide: bitsToHex(b) });
  });
  const none = make("button", { type: "button" }, "show all");
  none.addEventListener("click", () => page.set({ hide: "" }));
  const out = make("div", { class: "pictures" }), words = make("p", { class: "words" });
  const body = make("div", {}, make("div", { class: "row" }, some, none), grid, out, words);
  const update = ({ hide: answer }, image) => {
    const b = bits();
    buttons.forEach((button, n) => button.setAttribute("aria-selected", b[n] ? "true" : "false"));
    const under = pixels(make("canvas"), image.data, image.shape);
    grid.style.backgroundImage = `url(${under.toDataURL()})`;
    out.replaceChildren(picture(answer.drawn.data, answer.drawn.shape, "reconstruction", 140));
    const hidden = b.filter(Boolean).length;
    const error = answer.error.data.reduce((s, v) => s + v, 0) / Math.max(1, hidden);
    words.textContent = hidden
      ? `${hidden} of ${b.length} patches are hidden; their mean squared error is ${error.toFixed(3)}.`
      : "Click patches or drag over them to hide them.";
  };
  const inputs = () => ({ hidden: { shape: [rows * columns], data: Float32Array.from(bits()) } });
  return { body, update, inputs };
}

const SMALL = 0.01; // masks below this are zero, as in the layer

/** Support by rank; a click leaves a capsule out, a slider changes the steepness of the mask. */
export function ranks(side, page) {
  const body = make("div"), drawn = make("div"), usual = side.about.steepness;
  const on = make("input", { type: "checkbox" });
  on.addEventListener("change", () => page.set({ mask: on.checked ? "" : "off" }));
  const steep = slider("steepness", { min: 0, max: Math.round(4 * usual), step: usual / 12, value: usual, text: (v) => v.toFixed(1), change: (gam) => page.set({ gam }) });
  const often = side.about.frequencies, names = often.map((_, n) => String(n));
  const frequencies = make("details", {}, make("summary", {}, "rank frequencies"),
    make("p", { class: "words" }, "Frequencies on 200 test images (row: capsule, column: rank)."),
    matrix(often, { rows: names, columns: names, xlabel: "rank", ylabel: "capsule", sentence: `Rank frequencies of ${names.length} capsules of ${side.about.name}; ${often.filter((r) => r[0] === 0).length} never rank first.` }));
  body.append(make("p", { class: "row" }, make("label", {}, on, " mask by rank"), steep.element), drawn, frequencies);
  const update = async ({ ranks: answer }, image) => {
    const count = answer.rank.data.length, out = hexToBits(page.state.out, count);
    const gamma = page.state.gam < 0 ? usual : page.state.gam;
    on.checked = page.state.mask !== "off";
    steep.show(gamma);
    const order = Array.from({ length: count }, (_, n) => n).sort((p, q) => answer.rank.data[p] - answer.rank.data[q]);
    const own = page.state.gam < 0 && on.checked;
    const mask = Array.from(answer.rank.data, (rank, n) => {
      if (out[n]) return 0;
      if (own) return answer.mask.data[n];
      const m = on.checked ? Math.exp((-gamma * rank) / Math.max(1, count - 1)) : 1;
      return m < SMALL ? 0 : m;
    });
    const units = answer.poses.shape[1], poses = answer.poses.data.map((v, n) => v * mask[Math.floor(n / units)]);
    const inputs = { poses: { shape: [1, count, units], data: poses }, label: { shape: [1], data: Float32Array.of(-1) } };
    const changed = await side.ask("decode", inputs);
    if (!changed) return;
    const most = Math.max(...answer.support.data);
    const shown = order.slice(0, 8), shape = answer.drawn.shape;
    const left = shown.filter((n) => out[n]);
    drawn.replaceChildren(
      bars(shown.map((n) => (out[n] ? `no. ${n} off` : `no. ${n}`)), shown.map((n) => answer.support.data[n] / most), {
        colour: side.colour, sentence: `Support of the first eight capsules of ${side.about.name}; capsule ${order[0]} ranks first.`,
        onChoose: (k) => { const bits = out.slice(); bits[shown[k]] = bits[shown[k]] ? 0 : 1; page.set({ out: bitsToHex(bits) }); },
      }),
      make("p", { class: "words" }, `Bars: support relative to the first capsule. Click a capsule to leave it out or restore it. ${mask.filter((m) => m > 0).length} of ${count} capsules are active.`),
      make("div", { class: "pictures" }, picture(image.data, image.shape, "image", 64),
        picture(answer.drawn.data, shape, "original", 64),
        picture(per(changed.drawn, 0), shape, left.length ? `without ${left.join(", ")}` : own ? "unchanged" : on.checked ? `steepness ${gamma.toFixed(1)}` : "no mask", 64)),
      make("div", { class: "pictures" }, ...shown.slice(0, 6).map((n) => picture(per(answer.alone, n), shape, `only ${n} (mask ${mask[n].toFixed(2)})`, 64))),
      make("div", { class: "pictures" }, ...shown.slice(0, 6).map((n) => picture(per(answer.without, n), shape, `without ${n}`, 64))),
    );
  };
  return { body, update };
}

/** Corners of a part's template in the image, from 0 to 1. pose: two rows of three */
function corners(pose) {
  return [[-1, -1], [1, -1], [1, 1], [-1, 1]].map(([x, y]) => [0, 3].map((r) => (pose[r] * x + pose[r + 1] * y + pose[r + 2] + 1) / 2));
}

/** Colored parts; pointing at one outlines its template and shows its likeliest objects. */
export function parts(side, page) {
  const body = make("div"), pictures = make("div", { class: "pictures" });
  const list = make("div", { class: "partlist", role: "group", "aria-label": "parts" }), row = make("div");
  const least = slider("minimum presence", { min: 0, max: 1, step: 0.05, value: page.state.pre, text: (v) => v.toFixed(2), change: (pre) => page.set({ pre }) });
  body.append(pictures, least.element, list, row);
  let chosen = 0;
  const update = ({ parts: answer }, image) => {
    const { selection, presence, poses } = answer, [count, objects] = selection.shape, size = answer.drawn.shape;
    least.show(page.state.pre);
    pictures.replaceChildren(
      picture(image.data, image.shape, "image"),
      picture(answer.drawn.data, size, "reconstruction"),
      picture(answer.coloured.data, answer.coloured.shape, "colored by object"),
      picture(answer.templates.data, answer.templates.shape, "colored by part"));
    const show = (n) => {
      chosen = n;
      const odds = Array.from(per(selection, n)), order = odds.map((_, k) => k).sort((p, q) => odds[q] - odds[p]).slice(0, 5);
      row.replaceChildren(
        make("p", { class: "words" }, `Objects of part ${n}; its presence is ${presence.data[n].toFixed(2)}.`),
        bars(order.map((k) => (k ? `object ${k - 1}` : "no object")), order.map((k) => odds[k]), {
          colour: side.colour, sentence: `Part ${n} most likely belongs to ${order[0] ? `object ${order[0] - 1}` : "no object"}, ${odds[order[0]].toFixed(2)}.` }));
    };
    const present = Array.from({ length: count }, (_, n) => n).filter((n) => presence.data[n] >= page.state.pre);
    list.replaceChildren(...present.map((n) => {
      const owner = argmax(Array.from(per(selection, n)));
      const button = make("button", { type: "button", "data-part": n }, `${n}: ${owner ? `object ${owner - 1}` : "no object"}`);
      const look = () => { page.outline({ polygon: corners(per(poses, n)) }); show(n); };
      for (const kind of ["pointerenter", "focus"]) button.addEventListener(kind, look);
      for (const kind of ["pointerleave", "blur"]) button.addEventListener(kind, () => page.outline(null));
      return button;
    }), make("span", { class: "words" }, `${present.length} of ${count} parts, ${objects - 1} objects`));
    if (present.length) show(present.includes(chosen) ? chosen : present[0]);
  };
  return { body, update };
}

/** The bound by step of two searches, and the reconstruction after any step. */
export function steps(side) {
  const body = make("div"), curve = make("div"), pictures = make("div", { class: "pictures" });
  let answer = null, searched = null, at = 0, playing = 0;
  const methods = [["adam", "Adam"], ["levenberg", "Levenberg-Marquardt"]];
  const stop = () => { clearInterval(playing); playing = 0; play.textContent = "play"; };
  const play = step("play", "play the steps", () => {
    if (playing) return stop();
    play.textContent = "stop";
    at = 0;
    playing = setInterval(() => { draw(); if (++at > Number(scrub.input.max)) { at = Number(scrub.input.max); stop(); } }, 120);
  });
  const scrub = slider("step", { min: 0, max: 1, step: 1, value: 0, text: (v) => String(v), change: (v) => { stop(); at = v; draw(); } });
  body.append(curve, make("p", { class: "row" }, play, scrub.element), pictures);
  const draw = () => {
    if (!answer) return;
    const known = methods.filter(([key]) => answer[`${key}.curve`]); // a page without a server has only Adam
    const series = known.map(([key, name], n) => ({
      name, colour: n ? "currentColor" : side.colour, y: Array.from(answer[`${key}.curve`].data),
      x: Array.from(answer[`${key}.curve`].data, (_, k) => k),
    }));
    curve.replaceChildren(lines(series, { xlabel: "step", ylabel: "bound", whole: true, cursor: at,
      sentence: `The bound of ${side.about.name} increases from ${series[0].y[0].toFixed(1)} to ${series[0].y.at(-1).toFixed(1)} with Adam.` }));
    scrub.show(at);
    pictures.replaceChildren(picture(searched.data, searched.shape, "image"), ...known.flatMap(([key, name]) => {
      const frames = answer[`${key}.drawn`], hues = answer[`${key}.coloured`], n = Math.min(at, frames.shape[0] - 1);
      return [picture(per(frames, n), frames.shape.slice(1), `${name}, step ${n}`), picture(per(hues, n), hues.shape.slice(1), "colored by object")];
    }));
  };
  const update = ({ steps: result }, image) => {
    answer = result;
    searched = image;
    const most = answer["adam.curve"].data.length - 1;
    scrub.input.max = String(most);
    if (!playing) at = most;
    draw();
  };
  return { body, update };
}
