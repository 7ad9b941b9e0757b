// Save a panel: SVG with resolved colors, PNG with its provenance.

import { make } from "./draw.js";

/** Save all images of a panel side by side as one PNG, and a single SVG also as SVG. */
export async function savePanel(/** @type {HTMLElement} */ body, /** @type {string} */ name, about) {
  const svg = body.querySelector("svg");
  if (svg) download(new Blob([plainSvg(svg, about)], { type: "image/svg+xml" }), `${name}.svg`);
  const canvases = [...body.querySelectorAll("canvas")];
  const pictures = svg ? [await drawn(svg, about)] : canvases;
  if (!pictures.length) return;
  const size = (c) => (c instanceof HTMLCanvasElement ? [112, (112 * c.height) / c.width] : [c.width, c.height]);
  const all = make("canvas");
  const sizes = pictures.map(size);
  all.width = sizes.reduce((sum, [w]) => sum + w + 6, 0);
  all.height = Math.max(...sizes.map(([, h]) => h));
  const context = all.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.fillStyle = getComputedStyle(document.body).backgroundColor;
  context.fillRect(0, 0, all.width, all.height);
  let x = 0;
  pictures.forEach((p, n) => { context.drawImage(p, x, 0, ...sizes[n]); x += sizes[n][0] + 6; });
  const blob = await new Promise((done) => all.toBlob(done, "image/png"));
  download(await withText(blob, about), `${name}.png`);
}

function download(/** @type {Blob} */ blob, /** @type {string} */ name) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function plainSvg(/** @type {SVGSVGElement} */ svg, about) {
  const copy = /** @type {SVGSVGElement} */ (svg.cloneNode(true));
  const [, , width, height] = svg.getAttribute("viewBox").split(" ");
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  copy.setAttribute("color", getComputedStyle(svg).color);
  const originals = svg.querySelectorAll("*");
  copy.querySelectorAll("*").forEach((element, n) => { // a file has no style sheet of the page
    for (const name of ["fill", "stroke"]) {
      if (element.getAttribute(name)?.startsWith("var(")) element.setAttribute(name, getComputedStyle(originals[n])[name]);
    }
  });
  for (const text of copy.querySelectorAll("text")) {
    text.setAttribute("font-family", "sans-serif");
    text.setAttribute("font-size", "12");
    if (!text.hasAttribute("fill")) text.setAttribute("fill", "currentColor");
  }
  copy.prepend(make("svg:metadata", {}, JSON.stringify(about)));
  return new XMLSerializer().serializeToString(copy);
}

async function drawn(/** @type {SVGSVGElement} */ svg, about) {
  const image = new Image();
  image.src = `data:image/svg+xml,${encodeURIComponent(plainSvg(svg, about))}`;
  await image.decode();
  return image;
}

/** A tEXt chunk before the end of a PNG. */
async function withText(/** @type {Blob} */ blob, about) {
  const bytes = new Uint8Array(await blob.arrayBuffer());
  const text = new TextEncoder().encode(`tEXttorchcaps\0${JSON.stringify(about).replace(/[^\x20-\x7e]/g, "?")}`);
  const chunk = new Uint8Array(text.length + 8);
  const view = new DataView(chunk.buffer);
  view.setUint32(0, text.length - 4);
  chunk.set(text, 4);
  view.setUint32(text.length + 4, crc(text));
  const end = bytes.length - 12;
  return new Blob([bytes.subarray(0, end), chunk, bytes.subarray(end)], { type: "image/png" });
}

function crc(/** @type {Uint8Array} */ bytes) {
  let value = 0xffffffff;
  for (const byte of bytes) {
    value ^= byte;
    for (let k = 0; k < 8; k++) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  }
  return (value ^ 0xffffffff) >>> 0;
}
