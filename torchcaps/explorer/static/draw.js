// Pixels on a canvas; bars, lines and graphs as SVG with a sentence each.

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

/** [C,H,W] in [0,1] as it is; `diverging`: from blue through white to orange, -1 to 1. */
export function pixels(/** @type {HTMLCanvasElement} */ canvas, data, shape, diverging = false) {
  const [channels, height, width] = shape;
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const size = height * width;
  for (let i = 0; i < size; i++) {
    const at = [0, 1, 2].map((k) => data[(channels === 3 ? k : 0) * size + i]);
    const rgb = diverging ? divergent(at[0]) : at.map((v) => 255 * v);
    image.data.set([...rgb, 255], 4 * i);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

function divergent(value) {
  const v = Math.max(-1, Math.min(1, value));
  const end = v < 0 ? [0, 114, 178] : [213, 94, 0];
  return end.map((c) => 255 + (c - 255) * Math.abs(v));
}

/** Sixteen stops of viridis. */
const VIRIDIS = ["440154", "481a6c", "472f7d", "414487", "39568c", "31688e", "2a788e", "23888e",
  "1f988b", "22a884", "35b779", "54c568", "7ad151", "a5db36", "d2e21b", "fde725"];

/** [H,W] as a heat map over a grey image, both stretched over one square. */
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
      let grey = 0;
      for (let k = 0; k < channels; k++) grey += image.data[k * height * width + at] / channels;
      const stop = VIRIDIS[Math.min(15, Math.max(0, Math.floor((15.99 * value) / (most || 1))))];
      const rgb = [0, 2, 4].map((k) => parseInt(stop.slice(k, k + 2), 16));
      out.data.set([...rgb.map((c) => 0.6 * c + 0.4 * 255 * grey), 255], 4 * (y * side + x));
    }
  }
  context.putImageData(out, 0, 0);
  return canvas;
}

/** Horizontal bars from 0 to 1; the chosen one is outlined, the true class has a dot. */
export function bars(names, values, { colour, truth = -1, chosen = -1, sentence, onChoose }) {
  const small = innerWidth < 600; // two beside each other on a phone
  const high = 20, left = small ? 52 : 92, wide = small ? 84 : 290;
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
      make("svg:text", { x: left - 8, y: y + 14, "text-anchor": "end" }, (n === truth ? "● " : "") + shorten(name, small ? 6 : 9)),
      make("svg:text", { x: left + wide + 6, y: y + 14 }, values[n].toFixed(2)),
    );
    if (n === chosen) {
      group.append(make("svg:rect", { x: left, y: y + 1, width: wide, height: high - 3, fill: "none", stroke: "currentColor", "stroke-width": 1.5 }));
    }
    svg.append(group);
  });
  return svg;
}

export const shorten = (/** @type {string} */ text, most = 9) =>
  text.length > most ? `${text.slice(0, most - 1)}…` : text;

/** Lines over a common x, with a legend and a cursor. series: [{name, colour, x, y}] */
export function lines(series, { xlabel, ylabel, sentence, cursor = null, yrange = null }) {
  const wide = 560, high = 220, left = 46, bottom = 36, top = 22;
  const xs = series.flatMap((s) => s.x), ys = series.flatMap((s) => s.y);
  const svg = make("svg:svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": sentence });
  if (!xs.length) return svg;
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  let [y0, y1] = yrange || [Math.min(...ys), Math.max(...ys)];
  if (y1 === y0) y1 = y0 + 1;
  const X = (v) => left + ((v - x0) / (x1 - x0 || 1)) * (wide - left - 12);
  const Y = (v) => high - bottom - ((v - y0) / (y1 - y0)) * (high - bottom - top);
  for (let n = 0; n <= 4; n++) {
    const value = y0 + ((y1 - y0) * n) / 4;
    svg.append(
      make("svg:line", { x1: left, x2: wide - 12, y1: Y(value), y2: Y(value), stroke: "currentColor", "stroke-opacity": 0.15 }),
      make("svg:text", { x: left - 6, y: Y(value) + 4, "text-anchor": "end" }, tick(value)),
    );
    const at = x0 + ((x1 - x0) * n) / 4;
    svg.append(make("svg:text", { x: X(at), y: high - bottom + 16, "text-anchor": "middle" }, tick(at)));
  }
  svg.append(
    make("svg:text", { x: (wide + left) / 2, y: high - 4, "text-anchor": "middle" }, xlabel),
    make("svg:text", { x: 4, y: 12 }, ylabel),
  );
  series.forEach((s, n) => {
    const points = s.x.map((v, i) => `${X(v)},${Y(s.y[i])}`).join(" ");
    svg.append(make("svg:polyline", { points, fill: "none", stroke: s.colour, "stroke-width": 2.5, "stroke-dasharray": n ? "7 4" : "none" }));
    svg.append(make("svg:text", { x: left + 90 + 190 * n, y: 12, fill: s.colour, class: "legend" }, `${n ? "┄" : "─"} ${shorten(s.name, 24)}`));
  });
  if (cursor !== null && cursor >= x0 && cursor <= x1) {
    svg.append(make("svg:line", { x1: X(cursor), x2: X(cursor), y1: top, y2: high - bottom, stroke: "currentColor", "stroke-dasharray": "3 3" }));
  }
  return svg;
}

const tick = (v) => (Math.abs(v) >= 100 ? v.toFixed(0) : Math.abs(v) >= 10 ? v.toFixed(1).replace(/\.0$/, "") : v.toFixed(2));

/** Columns of nodes with edges between neighbours. columns: [[{label, size, y?}]], edges: [[{from, to, weight}]] */
export function graph(columns, edges, { colour, sentence, onPart }) {
  const wide = 440, high = 300;
  const svg = make("svg:svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": sentence });
  const X = (column) => 50 + (column * (wide - 130)) / Math.max(1, columns.length - 1);
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
      svg.append(make("svg:text", { x: X(column) + 12, y: Y(column, n) + 4, "font-weight": node.strong ? 700 : 400 }, node.label));
    }
  }));
  return svg;
}

/** A table for whoever reads rather than sees. */
export function table(head, rows) {
  const body = rows.map((cells) => make("tr", {}, ...cells.map((c, n) => make("td", { class: n ? "number" : "" }, String(c)))));
  return make("div", { class: "scroll" }, make("table", {}, make("tr", {}, ...head.map((h) => make("th", {}, h))), ...body));
}

export function picture(data, shape, caption, size = 84, diverging = false) {
  const canvas = pixels(make("canvas", { class: "pixels", role: "img", "aria-label": caption }), data, shape, diverging);
  canvas.style.width = `${size}px`;
  return make("figure", {}, canvas, make("figcaption", {}, caption));
}
