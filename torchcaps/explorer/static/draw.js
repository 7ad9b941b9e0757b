// Charts: pixels on a canvas; bars, lines, matrices and graphs as SVG with a text description.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children. */
export function make(/** @type {string} */ tag, attributes = {}, ...children) {
  const element = tag.startsWith("svg:")
    ? document.createElementNS(SVG, tag.slice(4))
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== false && value !== null) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

/** Image [C,H,W] in [0,1] on a canvas; `diverging`: -1 to 1 from blue through the page's color to orange. */
export function pixels(/** @type {HTMLCanvasElement} */ canvas, data, shape, diverging = false) {
  const [channels, height, width] = shape;
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const size = height * width, dark = isDark();
  for (let i = 0; i < size; i++) {
    const at = [0, 1, 2].map((k) => data[(channels === 3 ? k : 0) * size + i]);
    const rgb = diverging ? divergent(at[0], dark) : at.map((v) => 255 * v);
    image.data.set([...rgb, 255], 4 * i);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/** The page is dark, by its switch or by the system. */
export const isDark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

/** Zero has the color of the page: white, or black in the dark. */
function divergent(value, dark) {
  const v = Math.max(-1, Math.min(1, value));
  const zero = dark ? 21 : 255;
  const end = dark ? (v < 0 ? [86, 180, 233] : [230, 159, 0]) : v < 0 ? [0, 114, 178] : [213, 94, 0];
  return end.map((c) => zero + (c - zero) * Math.abs(v));
}

/** Sixteen stops of viridis. */
const VIRIDIS = ["440154", "481a6c", "472f7d", "414487", "39568c", "31688e", "2a788e", "23888e",
  "1f988b", "22a884", "35b779", "54c568", "7ad151", "a5db36", "d2e21b", "fde725"];

/** The color scale of maps, from 0 to `most`. */
export function scale(/** @type {number} */ most, /** @type {string} */ what) {
  const wide = 160, step = wide / VIRIDIS.length;
  const svg = make("svg:svg", { viewBox: `0 0 ${wide} 26`, class: "scale", role: "img", "aria-label": `Color scale: ${what} from 0 to ${tick(most)}` });
  VIRIDIS.forEach((color, n) => svg.append(make("svg:rect", { x: n * step, y: 0, width: step + 0.5, height: 9, fill: `#${color}` })));
  svg.append(make("svg:text", { x: 0, y: 22 }, "0"), make("svg:text", { x: wide / 2, y: 22, "text-anchor": "middle" }, what),
    make("svg:text", { x: wide, y: 22, "text-anchor": "end" }, tick(most)));
  return svg;
}

/** Heat map [H,W] over a gray image, both scaled to a square. */
export function heat(/** @type {HTMLCanvasElement} */ canvas, map, shape, image, most) {
  const side = 84;
  canvas.width = canvas.height = side;
  const context = canvas.getContext("2d");
  const out = context.createImageData(side, side);
  const [rows, columns] = shape;
  const [channels, height, width] = image.shape;
  for (let y = 0; y < side; y++) {
    for (let x = 0; x < side; x++) {
      const value = map[Math.floor((y * rows) / side) * columns + Math.floor((x * columns) / side)];
      const at = Math.floor((y * height) / side) * width + Math.floor((x * width) / side);
      let gray = 0;
      for (let k = 0; k < channels; k++) gray += image.data[k * height * width + at] / channels;
      const stop = VIRIDIS[Math.min(15, Math.max(0, Math.floor((15.99 * value) / (most || 1))))];
      const rgb = [0, 2, 4].map((k) => parseInt(stop.slice(k, k + 2), 16));
      out.data.set([...rgb.map((c) => 0.6 * c + 0.4 * 255 * gray), 255], 4 * (y * side + x));
    }
  }
  context.putImageData(out, 0, 0);
  return canvas;
}

/** Values on a grid as colors, one pixel each. */
export function swatch(/** @type {HTMLCanvasElement} */ canvas, values, [rows, columns], most) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d"), out = context.createImageData(columns, rows);
  values.forEach((value, n) => {
    const stop = VIRIDIS[Math.min(15, Math.max(0, Math.floor((15.99 * value) / (most || 1))))];
    out.data.set([...[0, 2, 4].map((k) => parseInt(stop.slice(k, k + 2), 16)), 255], 4 * n);
  });
  context.putImageData(out, 0, 0);
  return canvas;
}

/** Horizontal bars from 0 to 1; `chosen` has an outline, `truth` has a dot. */
export function bars(names, values, { colour, truth = -1, chosen = -1, sentence, onChoose, small = false, shown = (v) => v.toFixed(2) }) {
  const letters = Math.min(small ? 8 : 22, Math.max(3, ...names.map((name) => name.length)));
  const labels = names.map((name, n) => wrapped((n === truth ? "● " : "") + name, letters + 2));
  const high = 6 + 14 * Math.max(1, ...labels.map((lines) => lines.length));
  const left = 36 + 6.6 * letters, wide = small ? 84 : Math.max(150, 420 - left);
  const height = high * names.length + 4;
  const svg = make("svg:svg", { viewBox: `0 0 ${wide + left + 44} ${height}`, role: "img", "aria-label": sentence });
  names.forEach((name, n) => {
    const y = 2 + high * n, value = Math.max(0, Math.min(1, values[n]));
    const group = make("svg:g", { class: "bar", "data-class": n });
    if (onChoose) {
      group.setAttribute("tabindex", "0");
      group.setAttribute("role", "button");
      group.setAttribute("aria-label", `${name}: ${values[n].toFixed(2)}`);
      group.style.cursor = "pointer";
      group.addEventListener("click", () => onChoose(n));
      group.addEventListener("keydown", (event) => event.key === "Enter" && onChoose(n));
    }
    group.append(
      make("svg:rect", { x: left, y: y + 2, width: wide, height: high - 5, fill: "currentColor", "fill-opacity": 0.08 }),
      make("svg:rect", { x: left, y: y + 2, width: wide * value, height: high - 5, fill: colour }),
      lettering(labels[n], left - 8, y + high / 2 + 4, { "text-anchor": "end" }),
      make("svg:text", { x: left + wide + 6, y: y + high / 2 + 4 }, shown(values[n])),
    );
    if (n === chosen) {
      group.append(make("svg:rect", { x: left, y: y + 1, width: wide, height: high - 3, fill: "none", stroke: "currentColor", "stroke-width": 1.5 }));
    }
    svg.append(group);
  });
  return svg;
}

/** A name in lines of at most so many letters, three at most, broken between words where possible. */
export function wrapped(/** @type {string} */ text, /** @type {number} */ most) {
  const lines = [""];
  for (const word of text.split(" ")) {
    for (let rest = word; rest; rest = rest.slice(most)) {
      const piece = rest.slice(0, most), last = lines[lines.length - 1];
      if (!last) lines[lines.length - 1] = piece;
      else if (last.length + 1 + piece.length <= most) lines[lines.length - 1] = `${last} ${piece}`;
      else lines.push(piece);
    }
  }
  return lines.length > 3 ? [...lines.slice(0, 2), shorten(lines.slice(2).join(" "), most)] : lines;
}

/** Lines of text around a height, with the whole name as their title. */
function lettering(/** @type {string[]} */ lines, x, y, attributes = {}) {
  const first = y - 7 * (lines.length - 1);
  const element = make("svg:text", { x, y: first, ...attributes });
  if (lines.length === 1) element.append(lines[0]);
  else lines.forEach((line, n) => element.append(make("svg:tspan", { x, y: first + 14 * n }, n < lines.length - 1 ? `${line} ` : line)));
  return element;
}

export const shorten = (/** @type {string} */ text, most = 9) =>
  text.length > most ? `${text.slice(0, most - 1)}…` : text;

/** The color-blind safe palette of Okabe and Ito. */
export const PALETTE = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a68c9", "#8c6d31"];
const DASHES = ["none", "7 4", "7 3 2 3", "2 3"];

/** Four to ten round numbers between two limits. */
function round(low, high) {
  const size = 10 ** Math.floor(Math.log10((high - low) / 4));
  const by = [5, 2.5, 2, 1].map((k) => k * size).find((step) => (high - low) / step >= 4) ?? size;
  const first = Math.ceil(low / by - 1e-9), last = Math.floor(high / by + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, n) => Number(((first + n) * by).toPrecision(12)));
}

/** Ticks of a logarithmic axis: 1, 2 and 5 in each decade, or powers of ten over many decades. */
function decades(low, high) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  const digits = last - first > 3 ? [1] : [1, 2, 5];
  const ticks = [];
  for (let power = first; power <= last; power++) {
    for (const digit of digits) ticks.push(Number((digit * 10 ** power).toPrecision(1)));
  }
  const inside = ticks.filter((v) => v >= low * 0.999 && v <= high * 1.001);
  return inside.length > 1 ? inside : round(low, high);
}

/** Lines over a common x, with a legend and a cursor. series: [{name, colour, x, y, dash?, dots?}] */
export function lines(series, { xlabel, ylabel, sentence, cursor = null, yrange = null, log = false, whole = false }) {
  const across = series.some((s) => s.name.length > 26) ? 1 : 2; // names in the legend
  const wide = 560, left = 52, bottom = 36, rows = Math.ceil(series.length / across), top = 22 + 16 * Math.max(0, rows - 1);
  const high = 200 + top;
  const kept = series.map((s) => ({ ...s, points: s.x.map((v, n) => [v, s.y[n]]).filter(([v, w]) => v !== null && w !== null) }));
  const xs = kept.flatMap((s) => s.points.map(([v]) => v)), ys = kept.flatMap((s) => s.points.map(([, w]) => w));
  const svg = make("svg:svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": sentence });
  if (!xs.length) return svg;
  const to = log ? Math.log10 : (v) => v;
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  let [y0, y1] = yrange || [Math.min(...ys), Math.max(...ys)];
  if (y1 === y0) y1 = log ? 10 * y0 : y0 + 1;
  const X = (v) => left + ((v - x0) / (x1 - x0 || 1)) * (wide - left - 12);
  const Y = (v) => high - bottom - ((to(v) - to(y0)) / (to(y1) - to(y0))) * (high - bottom - top);
  const levels = log ? decades(y0, y1) : round(y0, y1);
  for (const value of levels) {
    svg.append(
      make("svg:line", { x1: left, x2: wide - 12, y1: Y(value), y2: Y(value), stroke: "currentColor", "stroke-opacity": 0.15 }),
      make("svg:text", { x: left - 6, y: Y(value) + 4, "text-anchor": "end" }, tick(value)),
    );
  }
  const marks = x1 === x0 ? [x0] : round(x0, x1).filter((v) => !whole || Number.isInteger(v));
  for (const at of marks) svg.append(make("svg:text", { x: X(at), y: high - bottom + 16, "text-anchor": "middle" }, Number.isInteger(at) ? String(at) : tick(at)));
  svg.append(
    make("svg:text", { x: (wide + left) / 2, y: high - 4, "text-anchor": "middle" }, xlabel),
    make("svg:text", { x: 4, y: 12 }, ylabel),
  );
  kept.forEach((s, n) => {
    const dash = DASHES[s.dash ?? (n ? 1 : 0)], line = { stroke: s.colour, "stroke-width": 2.5, "stroke-dasharray": dash, fill: "none" };
    svg.append(make("svg:polyline", { points: s.points.map(([v, w]) => `${X(v)},${Y(w)}`).join(" "), ...line }));
    if (s.dots || s.points.length === 1) {
      for (const [v, w] of s.points) svg.append(make("svg:circle", { cx: X(v), cy: Y(w), r: 3.5, fill: s.colour }, make("svg:title", {}, `${s.name}: ${tick(w)} at ${tick(v)}`)));
    }
    const x = left + 105 + 200 * (n % across), y = 8 + 16 * Math.floor(n / across);
    if (kept.length > 1) svg.append(make("svg:line", { x1: x, x2: x + 22, y1: y, y2: y, ...line }), make("svg:text", { x: x + 28, y: y + 4, class: "legend" }, shorten(s.name, across > 1 ? 26 : 54)));
  });
  if (cursor !== null && cursor >= x0 && cursor <= x1) {
    svg.append(make("svg:line", { x1: X(cursor), x2: X(cursor), y1: top, y2: high - bottom, stroke: "currentColor", "stroke-dasharray": "3 3" }));
  }
  return svg;
}

/** A matrix as colors, from 0 to `most`; `written`: with its numbers. values: [[…]] */
export function matrix(values, { rows, columns, xlabel, ylabel, sentence, most = null, written = false, onChoose = null }) {
  const cell = written ? 26 : Math.max(9, Math.min(26, Math.floor(400 / columns.length))), high = written ? 26 : Math.min(cell, 18);
  const left = 32 + 7 * Math.max(...rows.map((r) => r.length)), top = 8, under = written ? 20 + 7 * Math.max(...columns.map((c) => c.length)) : 22;
  const wide = left + cell * columns.length + 8, tall = top + high * rows.length + under + 16;
  const svg = make("svg:svg", { viewBox: `0 0 ${wide} ${tall}`, role: "img", "aria-label": sentence });
  svg.style.maxWidth = `${wide}px`;
  const peak = most ?? Math.max(...values.flat(), 1e-12);
  values.forEach((row, r) => row.forEach((value, c) => {
    const share = Math.max(0, Math.min(1, (value ?? 0) / peak));
    const fill = written ? `rgb(${[8, 81, 156].map((k) => Math.round(247 + (k - 247) * share)).join(",")})` : `#${VIRIDIS[Math.min(15, Math.floor(15.99 * share))]}`;
    const box = make("svg:rect", { x: left + cell * c, y: top + high * r, width: cell - 1, height: high - 1, fill },
      make("svg:title", {}, `${ylabel} ${rows[r]}, ${xlabel} ${columns[c]}: ${tick(value ?? 0)}`));
    if (onChoose) { box.style.cursor = "pointer"; box.addEventListener("click", () => onChoose(r, c)); }
    svg.append(box);
    if (!written || !(value >= 0.5)) return;
    const text = make("svg:text", { x: left + cell * (c + 0.5), y: top + high * (r + 0.5) + 4, "text-anchor": "middle" }, value.toFixed(0));
    text.style.fill = share > 0.5 ? "#fff" : "#000"; // independent of the page's theme
    svg.append(text);
  }));
  rows.forEach((name, r) => svg.append(make("svg:text", { x: left - 6, y: top + high * (r + 0.5) + 4, "text-anchor": "end" }, name)));
  const every = written ? 1 : Math.max(1, Math.floor(columns.length / 8)), foot = top + high * rows.length;
  columns.forEach((name, c) => {
    if (c % every) return;
    const x = left + cell * (c + 0.5);
    svg.append(written
      ? make("svg:text", { x, y: foot + 8, "text-anchor": "end", transform: `rotate(-90 ${x} ${foot + 8}) translate(0 4)` }, name)
      : make("svg:text", { x, y: foot + 16, "text-anchor": "middle" }, name));
  });
  svg.append(make("svg:text", { x: left + (cell * columns.length) / 2, y: tall - 4, "text-anchor": "middle" }, xlabel),
    make("svg:text", { x: 12, y: top + (high * rows.length) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${top + (high * rows.length) / 2})` }, ylabel));
  return svg;
}

export const tick = (v) => (Math.abs(v) >= 100 ? v.toFixed(0) : Math.abs(v) >= 10 ? v.toFixed(1).replace(/\.0$/, "") : Math.abs(v) < 0.1 && v !== 0 ? v.toPrecision(2) : v.toFixed(2));

/** Columns of nodes with edges between neighbours. columns: [[{label, size, y?}]], edges: [[{from, to, weight}]] */
export function graph(columns, edges, { colour, sentence, onPart }) {
  const last = columns[columns.length - 1], names = last.map((node) => wrapped(node.label, 18));
  const wide = 480, room = 24 + 6.8 * Math.max(3, ...names.flat().map((line) => line.length));
  const high = Math.max(300, 28 + last.length * (4 + 14 * Math.max(1, ...names.map((lines) => lines.length))));
  const svg = make("svg:svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": sentence });
  const X = (column) => 20 + (column * (wide - 20 - room)) / Math.max(1, columns.length - 1);
  const Y = (column, n) => 14 + ((n + 0.5) * (high - 28)) / columns[column].length;
  edges.forEach((list, column) => {
    const most = Math.max(...list.map((e) => e.weight), 1e-12);
    for (const { from, to, weight } of list) {
      svg.append(make("svg:line", {
        x1: X(column), y1: Y(column, from), x2: X(column + 1), y2: Y(column + 1, to),
        stroke: colour, "stroke-width": 0.4 + 4 * (weight / most), "stroke-opacity": 0.15 + 0.65 * (weight / most),
      }));
    }
  });
  columns.forEach((nodes, column) => nodes.forEach((node, n) => {
    const dot = make("svg:circle", { cx: X(column), cy: Y(column, n), r: 2.5 + 5 * node.size, fill: "currentColor" },
      make("svg:title", {}, node.title || node.label));
    if (node.place && onPart) {
      dot.setAttribute("tabindex", "0");
      dot.setAttribute("role", "button");
      dot.setAttribute("aria-label", node.title);
      dot.addEventListener("pointerenter", () => onPart(node.place));
      dot.addEventListener("focus", () => onPart(node.place));
      dot.addEventListener("pointerleave", () => onPart(null));
      dot.addEventListener("blur", () => onPart(null));
    }
    svg.append(dot);
    if (column === columns.length - 1) {
      svg.append(lettering(names[n], X(column) + 12, Y(column, n) + 4, { "font-weight": node.strong ? 700 : 400 }));
    }
  }));
  return svg;
}

/** A table of text. */
export function table(head, rows) {
  const body = rows.map((cells) => make("tr", {}, ...cells.map((c, n) => make("td", { class: n ? "number" : "" }, String(c)))));
  return make("div", { class: "scroll" }, make("table", {}, make("tr", {}, ...head.map((h) => make("th", {}, h))), ...body));
}

export function picture(data, shape, caption, size = 84, diverging = false, captioned = true, wide = 96) {
  const canvas = pixels(make("canvas", { class: "pixels", role: "img", "aria-label": caption }), data, shape, diverging);
  canvas.style.width = `${size}px`;
  if (!captioned) return canvas;
  const figure = make("figure", {}, canvas, make("figcaption", {}, caption));
  figure.style.maxWidth = `${Math.max(size, wide)}px`;
  return figure;
}
