// Panels: the models that a panel applies to, the questions that it asks, and how it shows the answer.

import { argmax, className, per } from "./answers.js";
import { bars, make, picture, pixels, table } from "./draw.js";
import { hide, parts, ranks, steps } from "./panels-latent.js";
import { errors, nearest } from "./panels-photos.js";
import { parse, passes, where } from "./panels-routing.js";

function classes(side, page) {
  const body = make("div");
  const update = ({ encode }, image) => {
    const values = Array.from(encode.scores.data), names = side.about.classes;
    const order = names.map((_, n) => n);
    const shown = names.length > 12 ? order.sort((p, q) => values[q] - values[p]).slice(0, 12) : order;
    const best = argmax(values);
    side.predicted = best;
    side.rotation = image.rotation;
    const rows = shown.map((n) => [className(side, n), values[n].toFixed(3)]);
    body.replaceChildren(
      bars(shown.map((n) => className(side, n)), shown.map((n) => values[n]), {
        colour: side.colour,
        small: innerWidth < 600, // two beside each other on a phone
        truth: shown.indexOf(page.truth(side)),
        chosen: shown.indexOf(page.state.cls < 0 ? best : page.state.cls),
        sentence: `${side.about.name} predicts ${className(side, best)}, ${values[best].toFixed(2)}.`,
        onChoose: (n) => page.set({ cls: shown[n], d: [] }),
      }),
      make("details", {}, make("summary", {}, "show as table"), table(["class", "score"], rows)),
    );
    page.verdict();
  };
  return { body, update };
}

function drawn(side) {
  const body = make("div", { class: "pictures" });
  if (side.about.blank) return { body: make("p", { class: "blank" }, side.about.blank), update: () => {} };
  const update = ({ encode }, image) => {
    const { data, shape } = encode.drawn;
    const difference = data.map((v, n) => v - image.data[n]);
    const gray = shape[0] === 3 ? average(difference, shape) : difference;
    body.replaceChildren(
      picture(image.data, shape, "image"),
      picture(data, shape, "reconstruction"),
      picture(gray, [1, shape[1], shape[2]], "difference", 84, true),
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
  if (side.about.blank) return { body: make("p", { class: "blank" }, side.about.blank), update: () => {} };
  const [count, units] = side.about.capsules;
  const most = Math.max(...side.about.range);
  const canvas = make("canvas", { class: "pixels", role: "img", "aria-label": "reconstruction of the edited capsule" });
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
    make("div", { class: "pictures" }, make("figure", {}, canvas, make("figcaption", {}, "edited"))),
    make("div", { class: "units" }, ...sliders.flatMap((s, n) => [make("label", {}, `${n}`), s])),
    make("p", { class: "words" }, "Reconstructions when only the last edited unit changes, by its offset:"), strip,
    make("button", { type: "button" }, "reset units"));
  body.querySelector("button").addEventListener("click", () => page.set({ d: [] }));
  const update = async ({ encode }) => {
    const poses = encode.capsules;
    side.likeliest = encode.scores ? argmax(Array.from(encode.scores.data)) : longest(poses);
    const which = chosen(), unit = Math.min(page.state.dim, units - 1);
    const named = side.about.encode.includes("scores"); // else capsules do not stand for classes
    words.textContent = named
      ? `Offsets of the units of the capsule “${className(side, which)}”.`
      : `Offsets of the units of capsule ${which}.`;
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
    const inputs = { poses: { shape: [values.length + 1, count, units], data: all }, label: { shape: [1], data: Float32Array.of(named ? which : -1) } };
    const answer = await side.ask("decode", inputs);
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
    words: (m) => (m.even ? "Class probabilities." : "Scores of class capsules, which need not sum to one.") + " ● marks the true class." },
  { name: "drawn", title: "Reconstruction", questions: ["encode"], lack: "decode", make: drawn, applies: (m) => m.encode.includes("drawn"), words: () => "" },
  { name: "parse", title: "Routing graph", questions: ["trace"], slow: true, make: parse, applies: asks("trace"), words: () => "Line width: coupling times the strength of the child capsule. Point at a capsule to outline its position in the image." },
  { name: "passes", title: "Routing passes", questions: ["trace"], slow: true, make: passes, applies: (m) => asks("trace")(m) && m.family === "inverted", words: () => "What the parents of each layer receive after each pass. Click a map to show its pass in the routing graph." },
  { name: "where", title: "Routing maps", questions: ["where"], slow: true, make: where, applies: asks("where"), words: () => "What each class receives from each position." },
  { name: "errors", title: "Reconstruction error of features", questions: ["errors"], slow: true, make: errors, applies: asks("errors"), words: () => "Mean squared error at each position as the pose of each likely class decodes to the features; 1 is on average that of their mean." },
  { name: "nearest", title: "Nearest training images", questions: ["nearest"], slow: true, rests: true, make: nearest, applies: asks("nearest"), words: () => "Training images whose pose of the predicted class is nearest, with their class and the cosine." },
  { name: "capsule", title: "Latent traversal", questions: ["encode"], lack: "decode", make: capsule, applies: asks("decode"), words: () => "" },
  { name: "hide", title: "Hidden patches", questions: ["hide"], make: hide, applies: asks("hide"), words: () => "" },
  { name: "ranks", title: "Capsule ranks", questions: ["ranks"], make: ranks, applies: asks("ranks"), words: () => "" },
  { name: "parts", title: "Parts and objects", questions: ["parts"], make: parts, applies: asks("parts"), words: () => "" },
  { name: "steps", title: "Free-form inference", questions: ["steps"], closed: true, slow: true, rests: true, make: steps, applies: asks("steps"), words: () => "A search for better latent variables of this image, starting at the encoder's values." },
];
