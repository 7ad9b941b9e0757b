// Panels: each says to which model it applies, which question it needs, and draws the answer.

import { bars, graph, heat, lines, make, picture, pixels, shorten, table } from "./draw.js";
import { bitsToHex, hexToBits } from "./state.js";

const argmax = (values) => values.reduce((best, v, n) => (v > values[best] ? n : best), 0);
const said = (side, n) => side.about.classes[n] ?? String(n);
const per = (tensor, n) => {
  const size = tensor.data.length / tensor.shape[0];
  return tensor.data.subarray(n * size, (n + 1) * size);
};

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

function where(side) {
  const body = make("div", { class: "pictures" });
  const update = ({ where: { received } }) => {
    const [count, height, width] = received.shape;
    const most = Math.max(...received.data);
    const totals = Array.from({ length: count }, (_, n) => per(received, n).reduce((s, v) => s + v, 0));
    const order = totals.map((_, n) => n).sort((p, q) => totals[q] - totals[p]).slice(0, 6);
    body.replaceChildren(...order.map((n) => {
      const name = said(side, n);
      const canvas = make("canvas", { role: "img", "aria-label": `where ${name} looks` });
      heat(canvas, per(received, n), [height, width], side.image, most);
      return make("figure", {}, canvas, make("figcaption", {}, shorten(name, 14)));
    }));
  };
  return { body, update };
}

/** The place of a capsule on its layer's grid, by its number. */
function spot(number, shape) {
  const types = shape[shape.length - 1];
  const position = Math.floor(number / types);
  const wide = shape.length === 3 ? shape[1] : shape.length === 2 ? Math.round(Math.sqrt(shape[0])) : 1;
  return { type: number % types, row: Math.floor(position / wide), column: position % wide, wide };
}

const NODES = 18;

function parse(side, page) {
  const body = make("div"), stepper = make("p", { class: "row" });
  const drawing = make("div");
  body.append(stepper, drawing);
  const most = Math.max(...side.about.passes);
  const update = ({ trace }) => {
    const asked = page.state.pass ? Math.min(page.state.pass, most) : most;
    stepper.replaceChildren(
      step("◀", "the pass before", () => page.set({ pass: Math.max(1, asked - 1) })),
      make("span", {}, `pass ${asked} of ${most}`),
      step("▶", "the next pass", () => page.set({ pass: Math.min(most, asked + 1) })),
    );
    const shapes = side.about.layers, columns = [], edges = [];
    const last = side.about.passes.length;
    let kept = null; // what the layer above the present one has drawn
    for (let layer = last; layer >= 1; layer--) {
      const pass = Math.max(1, side.about.passes[layer - 1] - (most - asked));
      const found = trace[`${layer}.${pass}.edges`];
      let list = Array.from({ length: found.shape[0] }, (_, n) => ({
        child: found.data[3 * n], parent: found.data[3 * n + 1], weight: found.data[3 * n + 2],
      })).filter((e) => e.weight > 0);
      const strength = trace[`${layer}.${pass}`].data;
      if (layer === last) {
        kept = Array.from(strength, (_, n) => n);
        if (kept.length > NODES) kept = [...new Set(list.map((e) => e.parent))].slice(0, NODES);
        columns.unshift(kept.map((n) => ({
          label: shorten(said(side, n), 12), title: said(side, n), strong: n === side.says,
          size: Math.min(1, strength[n] / Math.max(...strength)),
        })));
      }
      list = list.filter((e) => kept.includes(e.parent));
      const children = [...new Set(list.map((e) => e.child))].slice(0, NODES).sort((p, q) => p - q);
      const shape = shapes[layer - 1];
      const below = layer === 1 ? trace["0"].data : trace[`${layer - 1}.${Math.max(1, side.about.passes[layer - 2] - (most - asked))}`].data;
      const peak = Math.max(...children.map((n) => below[n]), 1e-9);
      columns.unshift(children.map((n) => {
        const at = spot(n, shape);
        const high = shape.length === 3 ? shape[0] : at.wide;
        return {
          label: "", size: Math.min(1, below[n] / peak),
          title: `type ${at.type} at row ${at.row + 1}, column ${at.column + 1}`,
          place: { row: at.row / high, column: at.column / at.wide, height: 1 / high, width: 1 / at.wide },
        };
      }));
      edges.unshift(list.filter((e) => children.includes(e.child)).slice(0, 60).map((e) => ({
        from: children.indexOf(e.child), to: kept.indexOf(e.parent), weight: e.weight,
      })));
      kept = children;
    }
    drawing.replaceChildren(graph(columns, edges, {
      colour: side.colour, onPart: (place) => page.outline(place),
      sentence: `The strongest couplings of ${side.about.name} after pass ${asked}: ${columns.length} layers.`,
    }));
  };
  return { body, update };
}

function step(text, label, go) {
  const button = make("button", { type: "button", "aria-label": label }, text);
  button.addEventListener("click", go);
  return button;
}

function passes(side) {
  const body = make("div");
  const update = ({ trace }) => {
    const last = side.about.passes.length, count = side.about.passes[last - 1];
    const rows = side.about.classes.map((name, n) => [name]);
    for (let pass = 1; pass <= count; pass++) {
      const logits = Array.from(trace[`${last}.${pass}.logits`].data);
      const top = Math.max(...logits), odds = logits.map((v) => Math.exp(v - top));
      const total = odds.reduce((s, v) => s + v, 0);
      odds.forEach((v, n) => rows[n].push((v / total).toFixed(2)));
    }
    const series = rows.map((r) => ({ name: r[0], y: r.slice(1).map(Number), x: r.slice(1).map((_, n) => n + 1) }));
    const best = series.sort((p, q) => q.y[count - 1] - p.y[count - 1]).slice(0, 2);
    best.forEach((s, n) => { s.colour = n ? "currentColor" : side.colour; });
    body.replaceChildren(
      lines(best, { xlabel: "pass", ylabel: "probability", yrange: [0, 1], sentence: `The two likeliest classes of ${side.about.name} after each of ${count} passes.` }),
      make("details", {}, make("summary", {}, "as a table"), table(["class", ...Array.from({ length: count }, (_, n) => `pass ${n + 1}`)], rows)),
    );
  };
  return { body, update };
}

function hide(side, page) {
  const [channels, height, width] = side.about.image, patch = side.about.patch;
  const rows = height / patch, columns = width / patch, size = 20;
  const grid = make("div", { class: "patches", role: "grid", "aria-label": "patches: space hides or shows one" });
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
  const some = make("button", { type: "button" }, "half at random");
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
  const update = ({ hide: answer }) => {
    const b = bits();
    buttons.forEach((button, n) => button.setAttribute("aria-selected", b[n] ? "true" : "false"));
    const under = pixels(make("canvas"), side.image.data, side.image.shape);
    grid.style.backgroundImage = `url(${under.toDataURL()})`;
    out.replaceChildren(picture(answer.drawn.data, answer.drawn.shape, "drawn in their places", 140));
    const hidden = b.filter(Boolean).length;
    const error = answer.error.data.reduce((s, v) => s + v, 0) / Math.max(1, hidden);
    words.textContent = hidden
      ? `${hidden} of ${b.length} patches are hidden; squared error a pixel there ${error.toFixed(3)}.`
      : "Click or paint patches to hide them.";
  };
  const given = () => ({ hidden: { shape: [rows * columns], data: Float32Array.from(bits()) } });
  return { body, update, given };
}

function ranks(side) {
  const body = make("div");
  const update = ({ ranks: answer }) => {
    const count = answer.rank.data.length;
    const order = Array.from({ length: count }, (_, n) => n).sort((p, q) => answer.rank.data[p] - answer.rank.data[q]);
    const most = Math.max(...answer.support.data);
    const shown = order.slice(0, 8), shape = answer.drawn.shape;
    body.replaceChildren(
      bars(shown.map((n) => `no. ${n}`), shown.map((n) => answer.support.data[n] / most), {
        colour: side.colour, sentence: `Support of the eight first capsules of ${side.about.name}; the first is ${order[0]}.`,
      }),
      make("p", { class: "words" }, "Bars: support, as a share of the first. Below: all as masked, then each alone, then all but that one."),
      make("div", { class: "pictures" }, picture(answer.drawn.data, shape, "all", 64)),
      make("div", { class: "pictures" }, ...shown.slice(0, 6).map((n) => picture(per(answer.alone, n), shape, `only ${n} (mask ${answer.mask.data[n].toFixed(2)})`, 64))),
      make("div", { class: "pictures" }, ...shown.slice(0, 6).map((n) => picture(per(answer.without, n), shape, `without ${n}`, 64))),
    );
  };
  return { body, update };
}

function parts(side) {
  const body = make("div");
  const update = ({ parts: answer }) => {
    const { selection, presence } = answer, [count, objects] = selection.shape;
    const rows = Array.from({ length: count }, (_, n) => {
      const row = Array.from(per(selection, n)), owner = argmax(row);
      return [`part ${n}`, presence.data[n].toFixed(2), owner ? `object ${owner - 1}` : "none", row[owner].toFixed(2)];
    });
    const size = answer.drawn.shape;
    body.replaceChildren(
      make("div", { class: "pictures" },
        picture(side.image.data, side.image.shape, "image"),
        picture(answer.drawn.data, size, "drawn by parts"),
        picture(answer.coloured.data, answer.coloured.shape, "in their object's colour"),
        picture(answer.templates.data, answer.templates.shape, "each part in its own")),
      make("details", {}, make("summary", {}, `parts and their objects (${objects - 1} objects)`), table(["part", "presence", "likeliest object", "probability"], rows)),
    );
  };
  return { body, update };
}

function steps(side) {
  const body = make("div");
  const update = ({ steps: answer }) => {
    const series = [["adam", "Adam"], ["levenberg", "Levenberg-Marquardt"]].map(([key, name], n) => ({
      name, colour: n ? "currentColor" : side.colour, y: Array.from(answer[`${key}.curve`].data),
      x: Array.from(answer[`${key}.curve`].data, (_, k) => k),
    }));
    body.replaceChildren(
      lines(series, { xlabel: "step", ylabel: "bound", sentence: `The bound of ${side.about.name} rises from ${series[0].y[0].toFixed(1)} by steps.` }),
      make("div", { class: "pictures" },
        picture(side.image.data, side.image.shape, "image"),
        ...series.map((s, n) => { const t = answer[`${n ? "levenberg" : "adam"}.drawn`]; return picture(t.data, t.shape, `after ${s.name}`); })),
    );
  };
  return { body, update };
}

const asks = (name) => (about) => about.questions.includes(name);

export const PANELS = [
  { name: "classes", title: "Classes", questions: ["encode"], narrow: true, make: classes, applies: (m) => m.encode.includes("scores"),
    words: (m) => (m.even ? "Probabilities." : "What class capsules claim: that need not add up to one.") + " ● is the true class." },
  { name: "drawn", title: "Drawn", questions: ["encode"], lack: "decode", make: drawn, applies: (m) => m.encode.includes("drawn"), words: () => "" },
  { name: "parse", title: "From parts to wholes", questions: ["trace"], slow: true, make: parse, applies: asks("trace"), words: () => "Width: share of a part times its strength. Point at a part: its place is outlined on the image." },
  { name: "passes", title: "Pass by pass", questions: ["trace"], slow: true, make: passes, applies: (m) => asks("trace")(m) && m.family === "inverted", words: () => "" },
  { name: "where", title: "Where classes look", questions: ["where"], slow: true, make: where, applies: asks("where"), words: () => "What a class receives from each place." },
  { name: "capsule", title: "Capsule", questions: ["encode"], lack: "decode", make: capsule, applies: asks("decode"), words: () => "" },
  { name: "hide", title: "Hidden patches", questions: ["hide"], make: hide, applies: asks("hide"), words: () => "" },
  { name: "ranks", title: "Ranks", questions: ["ranks"], make: ranks, applies: asks("ranks"), words: () => "" },
  { name: "parts", title: "Parts and objects", questions: ["parts"], make: parts, applies: asks("parts"), words: () => "" },
  { name: "steps", title: "Free-form steps", questions: ["steps"], closed: true, slow: true, make: steps, applies: asks("steps"), words: () => "Each image's own search for a better explanation, from where the encoder puts it." },
];
