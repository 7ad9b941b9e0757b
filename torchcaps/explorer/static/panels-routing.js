// Panels of routing: routing graph, routing passes and routing maps.

import { className, per, slider, step } from "./answers.js";
import { graph, heat, lines, make, PALETTE, scale, swatch, table } from "./draw.js";

export function where(side) {
  const body = make("div");
  const update = ({ where: { received } }, image) => {
    const [count, height, width] = received.shape;
    const most = Math.max(...received.data);
    const totals = Array.from({ length: count }, (_, n) => per(received, n).reduce((s, v) => s + v, 0));
    const order = totals.map((_, n) => n).sort((p, q) => totals[q] - totals[p]).slice(0, 6);
    body.replaceChildren(make("div", { class: "pictures" }, ...order.map((n) => {
      const name = className(side, n);
      const canvas = make("canvas", { role: "img", "aria-label": `routing map of ${name}` });
      heat(canvas, per(received, n), [height, width], image, most);
      return make("figure", {}, canvas, make("figcaption", {}, name));
    })), scale(most, "received"));
  };
  return { body, update };
}

/** The position of a capsule on its layer's grid, by its number. */
function spot(number, shape) {
  const types = shape[shape.length - 1];
  const position = Math.floor(number / types);
  const wide = shape.length === 3 ? shape[1] : shape.length === 2 ? Math.round(Math.sqrt(shape[0])) : 1;
  return { type: number % types, row: Math.floor(position / wide), column: position % wide, wide };
}

const NODES = 18, STRONGEST = 20;
/** The minimum weight, as a share of the strongest edge, that leaves at most STRONGEST edges. */
function fewest(list) {
  const weights = list.map((e) => e.weight).sort((p, q) => q - p);
  return weights.length > STRONGEST ? Math.min(0.95, weights[STRONGEST] / weights[0] + 1e-6) : 0;
}

export function parse(side, page) {
  const body = make("div"), stepper = make("p", { class: "row" });
  const drawing = make("div");
  const weakest = slider("minimum weight", { min: 0, max: 0.95, step: 0.05, value: Math.max(0, page.state.thr),
    text: (v) => `${Math.round(100 * v)} % of the strongest`, change: (thr) => page.set({ thr }) });
  body.append(stepper, weakest.element, drawing);
  const most = Math.max(...side.about.passes);
  const update = ({ trace }) => {
    const asked = page.state.pass ? Math.min(page.state.pass, most) : most;
    stepper.replaceChildren(
      step("◀", "previous pass", () => page.set({ pass: Math.max(1, asked - 1) })),
      make("span", {}, `pass ${asked} of ${most}`),
      step("▶", "next pass", () => page.set({ pass: Math.min(most, asked + 1) })),
    );
    const shapes = side.about.layers, columns = [], edges = [];
    const last = side.about.passes.length;
    let kept = null; // capsules that the layer above shows
    for (let layer = last; layer >= 1; layer--) {
      const pass = Math.max(1, side.about.passes[layer - 1] - (most - asked));
      const triples = trace[`${layer}.${pass}.edges`];
      let list = Array.from({ length: triples.shape[0] }, (_, n) => ({
        child: triples.data[3 * n], parent: triples.data[3 * n + 1], weight: triples.data[3 * n + 2],
      })).filter((e) => e.weight > 0);
      const share = page.state.thr < 0 ? fewest(list) : page.state.thr;
      if (layer === last) weakest.show(share);
      const least = share * Math.max(...list.map((e) => e.weight), 0);
      list = list.filter((e) => e.weight >= least);
      const strength = trace[`${layer}.${pass}`].data;
      if (layer === last) {
        kept = Array.from(strength, (_, n) => n);
        if (kept.length > NODES) kept = [...new Set(list.map((e) => e.parent))].slice(0, NODES);
        columns.unshift(kept.map((n) => ({
          label: className(side, n), title: className(side, n), strong: n === side.predicted,
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

/** What parents receive, as a map: the largest type at each position, or all types for few positions. */
function laid({ data, shape }) {
  const types = shape[shape.length - 1], count = data.length / types;
  if (count < 16) return { values: Array.from(data), size: [count, types] };
  const values = Array.from({ length: count }, (_, n) => Math.max(...data.subarray(n * types, (n + 1) * types)));
  const wide = shape.length === 3 ? shape[1] : Math.round(Math.sqrt(count));
  return { values, size: [count / wide, wide] };
}

/** Layers (rows) after each pass (columns), the change of their parents, and the class probabilities. */
export function passes(side, page) {
  const body = make("div");
  const most = Math.max(...side.about.passes);
  const update = ({ trace }) => {
    const last = side.about.passes.length, count = side.about.passes[last - 1];
    const asked = page.state.pass ? Math.min(page.state.pass, most) : most;
    const scales = [];
    const cells = [make("span"), ...Array.from({ length: most }, (_, n) => make("span", { class: "words" }, `pass ${n + 1}`))];
    side.about.passes.forEach((own, n) => {
      const maps = Array.from({ length: own }, (_, c) => laid(trace[`${n + 1}.${c + 1}.received`]));
      const peak = Math.max(...maps.flatMap((m) => m.values));
      scales.push(make("div", { class: "words" }, `layer ${n + 1}`, scale(peak, "received")));
      cells.push(make("span", { class: "words" }, `layer ${n + 1}`));
      for (let c = 1; c <= most; c++) {
        const map = maps[c - 1 - (most - own)]; // a lower layer starts later if its first passes are not used
        if (!map) { cells.push(make("span", { class: "words" }, "–")); continue; }
        const canvas = swatch(make("canvas"), map.values, map.size, peak);
        const cell = make("button", { type: "button", class: "cell", "aria-pressed": String(c === asked), "aria-label": `layer ${n + 1} after pass ${c}: show that pass` }, canvas);
        cell.addEventListener("click", () => page.set({ pass: c }));
        cells.push(cell);
      }
    });
    const grid = make("div", { class: "passgrid" }, ...cells);
    grid.style.gridTemplateColumns = `auto repeat(${most}, minmax(0, 84px))`;
    const rows = side.about.classes.map((name) => [name]);
    for (let pass = 1; pass <= count; pass++) {
      const logits = Array.from(trace[`${last}.${pass}.logits`].data);
      const top = Math.max(...logits), odds = logits.map((v) => Math.exp(v - top));
      const total = odds.reduce((s, v) => s + v, 0);
      odds.forEach((v, n) => rows[n].push((v / total).toFixed(2)));
    }
    const series = rows.map((r) => ({ name: r[0], y: r.slice(1).map(Number), x: r.slice(1).map((_, n) => n + 1) }));
    const best = series.sort((p, q) => q.y[count - 1] - p.y[count - 1]).slice(0, 2);
    best.forEach((s, n) => { s.colour = n ? "currentColor" : side.colour; });
    const changed = side.about.passes.map((own, n) => {
      const steps = Array.from({ length: own }, (_, c) => c + 1).filter((c) => trace[`${n + 1}.${c}.change`]);
      return { name: `layer ${n + 1}`, colour: PALETTE[n % PALETTE.length], dots: true,
        x: steps.map((c) => c + most - own), y: steps.map((c) => trace[`${n + 1}.${c}.change`].data[0]) };
    }).filter((s) => s.x.length);
    body.replaceChildren(
      grid, make("div", { class: "row" }, ...scales),
      lines(best, { xlabel: "pass", ylabel: "probability", yrange: [0, 1], whole: true, sentence: `The two likeliest classes of ${side.about.name} after each of ${count} passes.` }),
      ...(changed.length ? [lines(changed, { xlabel: "pass", ylabel: "relative change", whole: true, sentence: `Relative change of the parents of each layer of ${side.about.name} from pass to pass.` })] : []),
      make("details", {}, make("summary", {}, "show as table"), table(["class", ...Array.from({ length: count }, (_, n) => `pass ${n + 1}`)], rows)),
    );
  };
  return { body, update };
}
