// The page: state in the URL, the image and its transformations, two models side by side.

import { backend } from "./backend.js";
import { lines, make, pixels, table } from "./draw.js";
import { PANELS } from "./panels.js";
import { Side } from "./side.js";
import { FIELDS, imageToText, readHash, textToImage, writeHash } from "./state.js";
import { transformed } from "./warp.js";

const $ = (/** @type {string} */ id) => document.getElementById(id);
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const SLIDERS = [
  ["rot", "rotation", -180, 180, 1, (v) => `${v.toFixed(0)}°`],
  ["sc", "scale", 0.4, 1.8, 0.02, (v) => v.toFixed(2)],
  ["sh", "shear", -1, 1, 0.02, (v) => v.toFixed(2)],
  ["x", "shift x", -14, 14, 0.5, (v) => `${v} px`],
  ["y", "shift y", -14, 14, 0.5, (v) => `${v} px`],
  ["oc", "occlusion", 0, 1, 0.02, (v) => `${Math.round(100 * v)} %`],
  ["no", "noise", 0, 1, 0.02, (v) => v.toFixed(2)],
];
const CURVES = { rot: "rotation", sc: "scale", sh: "shear_x", x: "shift_x", y: "shift_y" };

const page = {
  backend,
  state: readHash(location.hash),
  runs: [],
  images: null, // {start, tensors}
  picture: null, // a drawing or a file, instead of a test image
  drawing: false,
  place: null,
  curves: { a: null, b: null },

  set(changes) {
    Object.assign(page.state, changes);
    schedule();
  },

  truth(side) {
    if (page.picture || !page.images) return -1;
    const own = page.sides.a.about, label = page.images.labels.data[page.state.i - page.images.first];
    if (label === undefined || label < 0 || !own) return -1;
    return side.about.classes.indexOf(own.classes[label]);
  },

  /** What both models predict, as a sentence. */
  verdict() {
    const sides = Object.values(page.sides).filter((s) => s.about && s.predicted !== null);
    if (!sides.length) return void ($("verdict").textContent = "");
    const rot = sides[0].rotation;
    const first = rot ? `Rotated by ${rot.toFixed(0)}°: ` : "";
    const predictions = sides.map((s) => `${s.about.name} predicts ${s.about.classes[s.predicted]}`);
    const truth = page.truth(page.sides.a);
    const name = truth < 0 ? "" : page.sides.a.about.classes[truth];
    const answers = sides.map((s) => s.about.classes[s.predicted]);
    let text = predictions.join(" and ");
    if (sides.length === 2 && answers[0] === answers[1]) text = `both models predict ${answers[0]}`;
    if (name !== "") text += answers.every((n) => n === name) ? ", which is correct" : `; the true class is ${name}`;
    else if (sides.length === 2 && answers[0] !== answers[1]) text += "; the models disagree";
    text = first + text + ".";
    $("verdict").textContent = text[0].toUpperCase() + text.slice(1);
    clearTimeout(page.speaking);
    page.speaking = setTimeout(() => { $("spoken").textContent = $("verdict").textContent; }, 500);
  },

  outline(place) {
    page.place = place;
    paint();
  },

  answered() {
    document.body.dataset.answers = String(Number(document.body.dataset.answers || 0) + 1);
    $("banner").hidden = true;
    page.patience = 1000;
  },

  gone(sentence) {
    $("banner").textContent = sentence;
    $("banner").hidden = false;
    clearTimeout(page.retry);
    page.retry = setTimeout(schedule, page.patience ?? 1000);
    page.patience = Math.min(30000, 2 * (page.patience ?? 1000));
  },

  provenance(side) {
    return { run: side.about.id, commit: side.about.record.commit, state: writeHash(page.state) };
  },
};
page.sides = { a: new Side("a", page), b: new Side("b", page) };

let waiting = false;
function schedule() {
  if (waiting || !page.runs.length) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; render(); });
}

let written = 0, later = 0;
function keepAddress() {
  clearTimeout(later);
  later = setTimeout(() => { written = Date.now(); history.replaceState(null, "", writeHash(page.state)); }, Math.max(0, 200 - (Date.now() - written)));
}

/** The input image before any transformation. */
function source() {
  if (page.picture) return page.picture;
  if (!page.images) return null;
  const { images, first } = page.images;
  const [, c, h, w] = images.shape, size = c * h * w, at = page.state.i - first;
  const bytes = images.data.subarray(at * size, (at + 1) * size);
  return bytes.length ? { shape: [c, h, w], data: Float32Array.from(bytes, (v) => v / 255) } : null;
}

async function loadImages() {
  const { a } = page.sides;
  const first = 32 * Math.floor(page.state.i / 32);
  if (page.images && page.images.run === a.about.id && page.images.first === first) return;
  const batch = await backend.images(a.about.id, first);
  page.images = { ...batch, first, run: a.about.id, count: batch.count.data[0] };
  if (!batch.labels.data.length) { page.state.i = 0; await loadImages(); }
}

async function openSide(key) {
  const side = page.sides[key], id = page.state[key];
  if (side.about?.id === id || (!side.about && !id)) return;
  side.open(id ? await backend.about(id) : null);
  if (key === "a") page.images = null;
  page.curves[key] = null;
  arrange();
}

/** What happened to the image, for a panel that shows an earlier one. */
function words(state) {
  const done = SLIDERS.filter(([name]) => state[name] !== FIELDS[name].start).map(([name, label, , , , text]) =>
    (name === "rot" ? `rotated by ${text(state[name])}` : `${label} ${text(state[name])}`));
  const which = page.picture ? page.picture.name : `image ${state.i + 1}`;
  return `${which}, ${done.join(", ") || "as it is"}`;
}

/** Panels that both sides have stand side by side; the others fill two columns below them, and what
 * a model lacks is one line. */
function arrange() {
  const { a, b } = page.sides;
  const has = (side, name) => side.panels.find((p) => p.kind.name === name);
  const both = PANELS.filter((kind) => has(a, kind.name) && has(b, kind.name));
  both.forEach((kind, row) => [a, b].forEach((side) => {
    has(side, kind.name).element.style.gridRow = innerWidth >= 600 ? String(row + 1) : "";
  }));
  $("columns").replaceChildren(...both.flatMap((kind) => [a, b].map((side) => has(side, kind.name).element)));
  $("columns").hidden = !both.length;
  const single = [a, b].flatMap((side) => side.panels.filter((p) => !both.includes(p.kind)).map((p) => p.element));
  single.forEach((element) => { element.style.gridRow = ""; });
  const halves = [0, 1].map((half) => make("div", {}, ...single.filter((_, n) => n % 2 === half)));
  $("single").replaceChildren(...(innerWidth >= 600 ? halves : single));
  $("single").hidden = !single.length;
  const shown = new Set([...a.panels, ...b.panels].map((p) => p.kind.name));
  $("lacks").replaceChildren(...[a, b].filter((side) => side.about).flatMap((side) => {
    const reasons = new Map();
    for (const kind of PANELS.filter((p) => shown.has(p.name) && !has(side, p.name))) {
      const reason = side.about.lacks[kind.lack ?? kind.questions[0]] ?? "Not available";
      reasons.set(reason, [...(reasons.get(reason) ?? []), kind.title.toLowerCase()]);
    }
    if (!reasons.size) return [];
    const text = [...reasons].map(([reason, titles]) => `no ${titles.join(", ")} (${reason[0].toLowerCase()}${reason.slice(1)})`);
    return [make("p", { class: `empty side-${side.key}` }, `${side.key.toUpperCase()}, ${side.about.name}: ${text.join("; ")}.`)];
  }));
  about();
}

let latest = 0;
async function render() {
  const turn = ++latest;
  try {
    await Promise.all([openSide("a"), openSide("b")]);
    if (turn !== latest) return schedule();
    if (!page.picture) await loadImages();
  } catch (error) {
    return page.gone(error.message);
  }
  keepAddress();
  paint();
  const image = source();
  if (!image) return;
  for (const side of Object.values(page.sides)) {
    if (side.about) side.look(transformed(image, page.state, side.about.image), words(page.state), page.state.rot);
  }
  curve();
  document.body.dataset.shown = writeHash(page.state);
}

/** Draw the input image of model A and update the sliders. */
function paint() {
  const image = source(), { a } = page.sides;
  if (!image || !a.about) return;
  const seen = transformed(image, page.state, a.about.image);
  const small = pixels(make("canvas"), seen.data, seen.shape);
  const canvas = /** @type {HTMLCanvasElement} */ ($("image")), context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(small, 0, 0, canvas.width, canvas.height);
  if (page.place) {
    const { row, column, height, width, polygon } = page.place;
    const points = polygon ?? [[column, row], [column + width, row], [column + width, row + height], [column, row + height]];
    context.strokeStyle = "#56b4e9";
    context.lineWidth = 3;
    context.beginPath();
    points.forEach(([x, y]) => context.lineTo(280 * x, 280 * y));
    context.closePath();
    context.stroke();
  }
  canvas.setAttribute("aria-valuenow", page.state.rot.toFixed(0));
  canvas.setAttribute("aria-valuetext", `rotated by ${page.state.rot.toFixed(0)} degrees`);
  canvas.classList.toggle("drawing", page.drawing);
  for (const [name, , , , , text] of SLIDERS) {
    const slider = /** @type {HTMLInputElement} */ ($(`s-${name}`));
    if (document.activeElement !== slider) slider.value = String(page.state[name]);
    $(`o-${name}`).textContent = text(page.state[name]);
  }
  const truth = page.truth(a);
  $("which").textContent = page.picture ? page.picture.name
    : `${a.about.data} ${page.state.i + 1} of ${page.images.count}${truth < 0 ? "" : `: ${a.about.classes[truth]}`}`;
}

function buildSliders() {
  for (const [name, label, least, most, step] of SLIDERS) {
    const slider = make("input", { type: "range", id: `s-${name}`, min: least, max: most, step });
    slider.addEventListener("input", () => { stopPlaying(); page.set({ [name]: Number(slider.value) }); });
    slider.addEventListener("dblclick", () => page.set({ [name]: FIELDS[name].start }));
    $("sliders").append(make("label", { for: `s-${name}` }, label), slider, make("output", { id: `o-${name}`, for: `s-${name}` }));
  }
}

const wrap = (angle) => ((((angle + 180) % 360) + 360) % 360) - 180;

function listenToImage() {
  const canvas = /** @type {HTMLCanvasElement} */ ($("image"));
  let from = null, pen = null;
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width - 0.5, (event.clientY - box.top) / box.height - 0.5];
  };
  const angle = ([x, y]) => (-Math.atan2(y, x) * 180) / Math.PI;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    stopPlaying();
    if (page.drawing) { pen = at(event); stroke(pen, pen); } else from = { angle: angle(at(event)), rot: page.state.rot };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (pen) { const to = at(event); stroke(pen, to); pen = to; }
    if (from) page.set({ rot: wrap(from.rot + angle(at(event)) - from.angle) });
  });
  const end = () => {
    if (pen) page.set({ pic: imageToText(page.picture) });
    from = pen = null;
  };
  canvas.addEventListener("pointerup", end);
  canvas.addEventListener("pointercancel", end);
  canvas.addEventListener("keydown", (event) => {
    const step = event.shiftKey ? 1 : 5;
    const turn = { ArrowLeft: step, ArrowUp: step, ArrowRight: -step, ArrowDown: -step }[event.key];
    if (turn) page.set({ rot: wrap(page.state.rot + turn) });
    if (event.key === "Home") page.set({ rot: 0 });
    if (turn || event.key === "Home") { stopPlaying(); event.preventDefault(); }
  });
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => { event.preventDefault(); openFile(event.dataTransfer.files[0]); });
}

/** Draw a line as thick as those of a digit. */
function stroke([x0, y0], [x1, y1]) {
  const { data } = page.picture;
  for (let n = 0; n <= 12; n++) {
    const px = 28 * (0.5 + x0 + ((x1 - x0) * n) / 12) - 0.5, py = 28 * (0.5 + y0 + ((y1 - y0) * n) / 12) - 0.5;
    for (let y = 0; y < 28; y++) for (let x = 0; x < 28; x++) {
      const ink = Math.max(0, Math.min(1, 2.1 - Math.hypot(x - px, y - py)));
      data[28 * y + x] = Math.max(data[28 * y + x], ink);
    }
  }
  schedule();
}

function draw(on) {
  page.drawing = on;
  $("draw").setAttribute("aria-pressed", String(on));
  $("clear").hidden = !on;
  if (on) {
    page.picture = { name: "your drawing", shape: [1, 28, 28], data: new Float32Array(784) };
    page.set({ rot: 0, sc: 1, sh: 0, x: 0, y: 0, pic: "" });
  } else schedule();
}

async function openFile(/** @type {File | undefined} */ file) {
  if (!file || !page.sides.a.about) return;
  draw(false);
  try {
    const image = await backend.picture(page.sides.a.about.id, file);
    page.picture = { name: file.name, shape: image.shape, data: image.data };
    page.set({ pic: "" });
  } catch (error) {
    page.gone(error.message);
  }
}

function another(by) {
  draw(false);
  page.picture = null;
  const count = page.images?.count ?? 1;
  page.set({ i: (page.state.i + by + count) % count, pic: "", d: [], cls: -1 });
}

let playing = null;
function stopPlaying() {
  if (playing) cancelAnimationFrame(playing);
  playing = null;
  $("play").setAttribute("aria-pressed", "false");
}
function play(until = Infinity) {
  stopPlaying();
  $("play").setAttribute("aria-pressed", "true");
  const began = performance.now(), from = page.state.rot;
  const turn = (now) => {
    const gone = now - began;
    page.set({ rot: gone > until ? from : wrap(from + (gone / 1000) * 30) });
    playing = gone > until ? null : requestAnimationFrame(turn);
    if (gone > until) stopPlaying();
  };
  playing = requestAnimationFrame(turn);
}

/** Accuracy of both models under the chosen transformation, with a cursor at the current amount. */
function curve() {
  const box = $("curve");
  if (!box) return;
  const kind = page.state.kind || "rotation";
  const series = Object.values(page.sides).filter((s) => page.curves[s.key]?.kind === kind && page.curves[s.key].x.length)
    .map((s) => ({ name: s.about.name, colour: s.colour, ...page.curves[s.key] }));
  const cursor = page.state[Object.keys(CURVES).find((k) => CURVES[k] === kind)] ?? null;
  const last = series.map((s) => `${s.name} from ${Math.min(...s.y).toFixed(2)} to ${Math.max(...s.y).toFixed(2)}`).join("; ");
  box.replaceChildren(series.length
    ? lines(series, { xlabel: kind.replace("_", " along "), ylabel: "accuracy", yrange: [0, 1], cursor, sentence: `Accuracy: ${last}.` })
    : "");
}

function curvePanel() {
  const sides = Object.values(page.sides).filter((s) => s.about && s.about.encode.includes("scores"));
  if (!sides.length) return [];
  const choose = make("select", { "aria-label": "transformation" }, ...Object.values(CURVES).map((k) => make("option", { value: k }, k.replace("_", " along "))));
  choose.value = page.state.kind || "rotation";
  choose.addEventListener("change", () => { page.set({ kind: choose.value }); });
  const start = make("button", { type: "button", id: "compute" }, "compute on 200 test images");
  const state = make("span", { class: "words", id: "progress" });
  let stops = [];
  start.addEventListener("click", async () => {
    if (stops.length) { stops.forEach((stop) => stop()); stops = []; start.textContent = "compute on 200 test images"; state.textContent = "cancelled"; return; }
    const kind = choose.value;
    start.textContent = "cancel";
    let open = sides.length;
    for (const side of sides) {
      try {
        stops.push(await backend.curve(side.about.id, kind, (status) => {
          page.curves[side.key] = { kind, x: status.x, y: status.y };
          state.textContent = status.error || `${status.x.length} of ${status.total} points of ${side.about.name}`;
          if (!["waiting", "running"].includes(status.state) && --open === 0) { stops = []; start.textContent = "compute on 200 test images"; state.textContent = status.error || "done"; }
          curve();
        }));
      } catch (error) { state.textContent = error.message; stops = []; start.textContent = "compute on 200 test images"; return; }
    }
  });
  return [make("details", { class: "panel", open: true, "data-panel": "curve" },
    make("summary", {}, make("h2", {}, "Accuracy under transformations")),
    make("p", { class: "words" }, "Accuracy on the same test images at each amount of the transformation. The dotted line marks the current amount."),
    make("p", { class: "row" }, choose, start, state), make("div", { id: "curve", class: "body" }))];
}

/** Training records of both models, with the results of their paper. */
function about() {
  const cards = Object.values(page.sides).filter((s) => s.about).map((s) => {
    const m = s.about, r = m.record;
    const rows = r.results.map((x) => [`${x.metric.replaceAll("_", " ")}${x.features ? ` of ${x.features}` : ""}, ${x.data} ${x.split}`, x.value.toFixed(4)]);
    const cells = m.beside.map((c) => [`${c.column}${c.protocol === "ours" ? "" : ` [${c.protocol}]`}`,
      c.mean === null ? "–" : `${c.mean.toFixed(2)}${c.std === null ? "" : ` ± ${c.std.toFixed(2)}`} (${c.n})`, c.paper_value ?? ""]);
    return make("div", { class: `side-${s.key}` },
      make("h2", {}, `${s.key.toUpperCase()}: ${m.name}`),
      make("p", { class: "words" }, [`${m.family}, ${m.parameters.toLocaleString("en")} parameters`, r.command ? `seed ${r.seed}` : "no training record",
        r.device, r.date.slice(0, 10), r.commit ? `commit ${String(r.commit).slice(0, 8)}` : ""].filter(Boolean).join("; ")),
      r.command ? make("code", {}, r.command) : "", rows.length ? table(["metric", "value"], rows) : "",
      cells.length ? table(["column", "ours", "paper"], cells) : "");
  });
  $("wide").replaceChildren(...curvePanel(), make("details", { class: "panel", open: true, "data-panel": "about" },
    make("summary", {}, make("h2", {}, "Provenance")), make("div", { class: "pictures body" }, ...cards)));
  curve();
}

function choices() {
  for (const key of ["a", "b"]) {
    const select = /** @type {HTMLSelectElement} */ ($(`run-${key}`));
    const options = page.runs.map((r) => make("option", { value: r.id }, `${r.name} (${r.id})`));
    select.replaceChildren(...(key === "b" ? [make("option", { value: "" }, "none")] : []), ...options);
    select.value = page.state[key];
    select.addEventListener("change", () => page.set({ [key]: select.value, cls: -1, d: [], mask: "", gam: -1, out: "", ...(key === "a" ? { i: 0, hide: "" } : {}) }));
  }
}

function nextRun(key) {
  const select = /** @type {HTMLSelectElement} */ ($(`run-${key}`));
  select.selectedIndex = (select.selectedIndex + 1) % select.options.length;
  select.dispatchEvent(new Event("change"));
}

function listenToKeys() {
  addEventListener("keydown", (event) => {
    const on = /** @type {HTMLElement} */ (event.target);
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (["INPUT", "SELECT", "TEXTAREA"].includes(on.tagName)) return;
    if (!(/** @type {HTMLInputElement} */ ($("shortcuts")).checked)) return;
    if (event.key === " " && ["BUTTON", "SUMMARY"].includes(on.tagName)) return;
    const most = Math.max(1, ...Object.values(page.sides).flatMap((s) => s.about?.passes ?? []));
    const now = page.state.pass || most;
    const does = {
      "[": () => another(-1), "]": () => another(1), " ": () => (playing ? stopPlaying() : play()),
      ",": () => page.set({ pass: Math.max(1, now - 1) }), ".": () => page.set({ pass: Math.min(most, now + 1) }),
      a: () => nextRun("a"), b: () => nextRun("b"), r: reset, "?": () => $("help").click(),
    }[event.key];
    if (does) { event.preventDefault(); does(); }
  });
}

function reset() {
  stopPlaying();
  page.set({ rot: 0, sc: 1, sh: 0, x: 0, y: 0, oc: 0, no: 0, d: [] });
}

function listen() {
  $("before").addEventListener("click", () => another(-1));
  $("after").addEventListener("click", () => another(1));
  $("play").addEventListener("click", () => (playing ? stopPlaying() : play()));
  $("draw").addEventListener("click", () => draw(!page.drawing));
  $("clear").addEventListener("click", () => draw(true));
  $("reset").addEventListener("click", reset);
  $("file").addEventListener("change", () => openFile(/** @type {HTMLInputElement} */ ($("file")).files[0]));
  $("help").addEventListener("click", () => {
    $("keys").hidden = !$("keys").hidden;
    $("help").setAttribute("aria-expanded", String(!$("keys").hidden));
  });
  $("link").addEventListener("click", async () => {
    history.replaceState(null, "", writeHash(page.state));
    await navigator.clipboard?.writeText(location.href).catch(() => {});
    $("link").textContent = page.picture && !page.state.pic ? "copied, without your image" : "copied";
    setTimeout(() => { $("link").textContent = "copy link"; }, 1500);
  });
  $("theme").addEventListener("click", () => {
    const dark = getComputedStyle(document.documentElement).colorScheme === "dark" ||
      (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("theme", document.documentElement.dataset.theme); } catch { /* a private window */ }
    schedule();
  });
  addEventListener("hashchange", () => { Object.assign(page.state, readHash(location.hash)); begin(); });
  addEventListener("resize", () => page.sides.a.about && arrange());
}

/** Defaults for models that the URL does not name: CapsNet and ConvNet-Avg, or the two newest runs. */
function begin() {
  const known = page.runs.map((r) => r.id);
  const prefer = (names, other) => names.find((n) => known.includes(n)) ?? other;
  if (location.hash === "") page.state.i = 157; // on this digit the two models disagree at many angles
  if (!known.includes(page.state.a)) page.state.a = known[0].endsWith(".digits") ? prefer(["capsnet-small.digits"], known[0]) : known[0];
  if (!known.includes(page.state.b)) {
    page.state.b = "";
    const data = page.runs.find((r) => r.id === page.state.a).data;
    const rest = page.runs.filter((r) => r.id !== page.state.a && r.data === data).map((r) => r.id);
    if (!location.hash.includes("a=")) page.state.b = rest[0]?.endsWith(".digits") ? prefer(["convnet-avg-small.digits"], rest[0]) : rest[0] ?? "";
  }
  const kept = page.state.pic ? textToImage(page.state.pic) : null;
  if (kept) page.picture = { name: "your drawing", ...kept };
  for (const key of ["a", "b"]) (/** @type {HTMLSelectElement} */ ($(`run-${key}`))).value = page.state[key];
  schedule();
}

async function start() {
  try {
    const theme = localStorage.getItem("theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch { /* a private window */ }
  buildSliders();
  listenToImage();
  listenToKeys();
  listen();
  await connect();
}

async function connect() {
  try {
    page.runs = await backend.runs();
  } catch (error) {
    page.gone(error.message);
    return void setTimeout(connect, 2000);
  }
  choices();
  const fresh = location.hash === "";
  begin();
  if (fresh && !calm.matches) setTimeout(() => page.sides.a.about && !page.drawing && play(4000), 1500);
}

start();
