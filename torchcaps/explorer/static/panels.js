// Panels: each says to which model it applies, which question it needs, and draws the answer.

import { argmax, per, said } from "./answers.js";
import { bars, make, picture, pixels, table } from "./draw.js";
import { hide, parts, ranks, steps } from "./panels-latent.js";
import { parse, passes, where } from "./panels-routing.js";

function classes(side, page) {
  const body = make("div");
  const update = ({ encode }) => {
    const values = Array.from(encode.scores.data), names = side.about.classes;
    const order = names.map((_, n) => n);
    const shown = names.length > 12 ? order.sort((p, q) => values[q] - values[p]).slice(0, 12) : order;
    const best = argmax(values);
    side.says = best;
    const rows = shown.map((n) => [said(side, n), values[n].toFixed(3)]);
    body.replaceChildren(
      bars(shown.map((n) => said(side, n)), shown.map((n) => values[n]), {
        colour: side.colour,
        small: innerWidth < 600, // two beside each other on a phone
        truth: shown.indexOf(page.truth(side)),
        chosen: shown.indexOf(page.state.cls < 0 ? best : page.state.cls),
        sentence: `${side.about.name} says ${said(side, best)}, ${values[best].toFixed(2)}.`,
        onChoose: (n) => page.set({ cls: shown[n], d: [] }),
      }),
      make("details", {}, make("summary", {}, "as a table"), table(["class", "claim"], rows)),
    );
    page.verdict();
  };
  return { body, update };
}

function drawn(side) {
  const body = make("div", { class: "pictures" });
  const update = ({ encode }) => {
    const { data, shape } = encode.drawn;
    const difference = data.map((v, n) => v - side.image.data[n]);
    const grey = shape[0] === 3 ? average(difference, shape) : difference;
    body.replaceChildren(
      picture(side.image.data, shape, "image"),
      picture(data, shape, "drawn"),
      picture(grey, [1, shape[1], shape[2]], "drawn less image", 84, true),
    );
  };
  return { body, update };
}

function average(data, [channels, height, width]) {
  const size = height * width;
  return Float32Array.from({ length: size }, (_, n) => {
    let sum = 0;
    for (let k = 0; k < channels; k++) sum += data[k * size + n];
    return sum / channels;
  });
}

function capsule(side, page) {
  const [count, units] = side.about.capsules;
  const most = Math.max(...side.about.range);
  const canvas = make("canvas", { class: "pixels", role: "img", "aria-label": "what the moved capsule draws" });
  canvas.style.width = "112px";
  const strip = make("div", { class: "strip" });
  const words = make("p", { class: "words" });
  const sliders = Array.from({ length: units }, (_, unit) => make("input", {
    type: "range", min: -1.25 * most, max: 1.25 * most, step: most / 50, value: 0,
    "data-unit": unit, "aria-label": `unit ${unit}`,
  }));
  const chosen = () => (page.state.cls >= 0 && page.state.cls < count ? page.state.cls : side.likeliest ?? 0);
  const move = (unit, value) => {
    const d = Array.from({ length: units }, (_, n) => page.state.d[n] ?? 0);
    d[unit] = value;
    page.set({ d, dim: unit });
  };
  sliders.forEach((slider, unit) => {
    slider.addEventListener("input", () => move(unit, Number(slider.value)));
    slider.addEventListener("dblclick", () => move(unit, 0));
  });
  const body = make("div", {}, words,
    make("div", { class: "pictures" }, make("figure", {}, canvas, make("figcaption", {}, "moved"))),
    make("div", { class: "units" }, ...sliders.flatMap((s, n) => [make("label", {}, `${n}`), s])),
    make("p", { class: "words" }, "The strip moves one unit alone, from less to more."), strip,
    make("button", { type: "button" }, "all units back"));
  body.querySelector("button").addEventListener("click", () => page.set({ d: [] }));
  const update = async ({ encode }) => {
    const poses = encode.capsules;
    side.likeliest = encode.scores ? argmax(Array.from(encode.scores.data)) : longest(poses);
    const which = chosen(), unit = Math.min(page.state.dim, units - 1);
    const named = side.about.encode.includes("scores"); // else capsules are nobody's classes
    words.textContent = named
      ? `Units of the capsule “${said(side, which)}”; a slider adds to a unit.`
      : `Units of capsule ${which}; a slider adds to a unit.`;
    sliders.forEach((s, n) => { if (document.activeElement !== s) s.value = page.state.d[n] ?? 0; });
    const values = side.about.range;
    const all = new Float32Array((values.length + 1) * count * units);
    for (let n = 0; n <= values.length; n++) {
      all.set(poses.data, n * count * units);
      for (let u = 0; u < units; u++) {
        const place = n * count * units + which * units + u;
        all[place] += page.state.d[u] ?? 0;
        if (n && u === unit) all[place] = poses.data[which * units + u] + values[n - 1];
      }
    }
    const given = { poses: { shape: [values.length + 1, count, units], data: all }, label: { shape: [1], data: Float32Array.of(named ? which : -1) } };
    const answer = await side.ask("decode", given);
    if (!answer) return;
    pixels(canvas, per(answer.drawn, 0), answer.drawn.shape.slice(1));
    strip.replaceChildren(...values.map((v, n) =>
      picture(per(answer.drawn, n + 1), answer.drawn.shape.slice(1), `${v > 0 ? "+" : ""}${Number(v.toFixed(2))}`, 44)));
  };
  return { body, update };
}

function longest({ data, shape: [count, units] }) {
  const lengths = Array.from({ length: count }, (_, j) => {
    let sum = 0;
    for (let u = 0; u < units; u++) sum += data[j * units + u] ** 2;
    return sum;
  });
  return argmax(lengths);
}

const asks = (name) => (about) => about.questions.includes(name);

export const PANELS = [
  { name: "classes", title: "Classes", questions: ["encode"], narrow: true, make: classes, applies: (m) => m.encode.includes("scores"),
    words: (m) => (m.even ? "Probabilities." : "What class capsules claim: that need not add up to one.") + " ● is the true class." },
  { name: "drawn", title: "Drawn", questions: ["encode"], lack: "decode", make: drawn, applies: (m) => m.encode.includes("drawn"), words: () => "" },
  { name: "parse", title: "From parts to wholes", questions: ["trace"], slow: true, make: parse, applies: asks("trace"), words: () => "Width: share of a part times its strength. Point at a part: its place is outlined on the image." },
  { name: "passes", title: "Pass by pass", questions: ["trace"], slow: true, make: passes, applies: (m) => asks("trace")(m) && m.family === "inverted", words: () => "What the parents of each layer receive after each pass; a click shows that pass above." },
  { name: "where", title: "Where classes look", questions: ["where"], slow: true, make: where, applies: asks("where"), words: () => "What a class receives from each place." },
  { name: "capsule", title: "Capsule", questions: ["encode"], lack: "decode", make: capsule, applies: asks("decode"), words: () => "" },
  { name: "hide", title: "Hidden patches", questions: ["hide"], make: hide, applies: asks("hide"), words: () => "" },
  { name: "ranks", title: "Ranks", questions: ["ranks"], make: ranks, applies: asks("ranks"), words: () => "" },
  { name: "parts", title: "Parts and objects", questions: ["parts"], make: parts, applies: asks("parts"), words: () => "" },
  { name: "steps", title: "Free-form steps", questions: ["steps"], closed: true, slow: true, make: steps, applies: asks("steps"), words: () => "Each image's own search for a better explanation, from where the encoder puts it." },
];
