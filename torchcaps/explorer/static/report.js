// Figures of a report: charts from values in the page, with the code of the explorer's panels.

import { bars, heat, lines, make, matrix, PALETTE, picture, scale, table, tick } from "./draw.js";
import { savePanel } from "./save.js";

/** Images from bytes to numbers from 0 to 1. */
function unpacked({ shape, pixels }) {
  const bytes = atob(pixels);
  return { shape, data: Float32Array.from(bytes, (letter) => letter.charCodeAt(0) / 255) };
}

/** One of several images, by its number. */
function part({ shape, data }, number) {
  const own = shape.slice(-3), size = own.reduce((p, q) => p * q, 1);
  return [data.subarray(number * size, (number + 1) * size), own];
}

const DRAWN = {
  lines: (d, title) => {
    const series = d.lines.map((l) => ({ ...l, colour: PALETTE[l.colour % PALETTE.length], dots: l.points }));
    const ends = series.map((s) => `${s.name} ends at ${tick(s.y.findLast((v) => v !== null) ?? NaN)}`).join("; ");
    const xs = [...new Set(series.flatMap((s) => s.x))].sort((p, q) => p - q);
    const rows = xs.map((x) => [x, ...series.map((s) => { const v = s.y[s.x.indexOf(x)]; return v === undefined || v === null ? "" : tick(v); })]);
    return [lines(series, { ...d, sentence: `${title}: ${ends}.` }), table([d.xlabel, ...series.map((s) => s.name)], rows)];
  },
  bars: (d, title) => {
    const worst = d.names.length ? `, from ${d.names[0]} with ${tick(d.values[0])}` : "";
    return [
      bars(d.names, d.values.map((v) => v / 100), { colour: PALETTE[0], sentence: `${title}: ${d.xlabel}${worst}.`, shown: (v) => (100 * v).toFixed(1) }),
      table(["", d.xlabel], d.names.map((name, n) => [name, d.values[n].toFixed(2)])),
    ];
  },
  matrix: (d, title) => [
    make("div", {}, matrix(d.values, { ...d, sentence: `${title}: ${d.ylabel} by ${d.xlabel}, ${d.what}.` }),
      ...(d.written ? [] : [scale(d.most ?? Math.max(...d.values.flat()), d.what)])),
    table([`${d.ylabel} \\ ${d.xlabel}`, ...d.columns], d.rows.map((name, r) => [name, ...d.values[r].map((v) => tick(v))])),
  ],
  grid: (d) => {
    const images = unpacked(d.images), [high, wide] = images.shape;
    const cells = [];
    if (d.columns.length) cells.push(make("span"), ...d.columns.map((name) => make("span", { class: "above" }, name)));
    for (let r = 0; r < high; r++) {
      cells.push(make("span", { class: "beside" }, d.rows[r] ?? ""));
      for (let c = 0; c < wide; c++) cells.push(picture(...part(images, r * wide + c), [d.rows[r], d.columns[c] ?? c + 1].join(" "), d.size, false, false));
    }
    const box = make("div", { class: "imagegrid" }, ...cells);
    box.style.gridTemplateColumns = `auto repeat(${wide}, ${d.size}px)`;
    return [box];
  },
  shots: (d) => {
    if (!d.captions.length) return [make("p", {}, d.otherwise)];
    const images = unpacked(d.images);
    const box = make("div", { class: d.columns ? "imagegrid shots" : "pictures" }, ...d.captions.map((text, n) => picture(...part(images, n), text, 92, false, true, d.columns ? 92 : 150)));
    if (d.columns) box.style.gridTemplateColumns = `repeat(${d.columns}, 92px)`;
    return [box];
  },
  maps: (d) => {
    const image = unpacked(d.image), flat = d.maps.map((m) => m.flat()), most = Math.max(...flat.flat());
    return [make("div", {}, make("div", { class: "pictures" }, ...d.names.map((name, n) => {
      const canvas = make("canvas", { role: "img", "aria-label": `${d.what} by ${name}` });
      heat(canvas, flat[n], [d.maps[n].length, d.maps[n][0].length], image, most);
      return make("figure", {}, canvas, make("figcaption", {}, name));
    })), scale(most, d.what))];
  },
};

const charts = JSON.parse(document.getElementById("drawings").textContent);
for (const box of document.querySelectorAll("[data-drawing]")) {
  const { title, name, about, drawing } = charts[Number(box.dataset.drawing)];
  const [shown, numbers] = DRAWN[drawing.kind](drawing, title);
  const save = make("button", { type: "button", "aria-label": `save ${title}` }, "save");
  save.addEventListener("click", () => savePanel(box, name, about));
  box.replaceChildren(shown, make("p", { class: "tools" }, save));
  if (numbers) box.lastChild.append(make("details", {}, make("summary", {}, "show as table"), numbers));
}
document.body.dataset.drawn = String(charts.length);
