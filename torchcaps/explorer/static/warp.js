// Transform an image: scale, shear along x, rotate, shift; then an occluding square and noise.
// The same map and bilinear interpolation as the library's `warp`.

/** @typedef {{ shape: number[], data: Float32Array }} Image [C,H,W] in [0,1] */
/** @typedef {{ rot: number, sc: number, sh: number, x: number, y: number, oc: number, no: number }} Moves */

/** @param {Image} image @param {Moves} moves @param {number[]} shape @returns {Image} */
export function transformed(image, moves, shape) {
  const [channels, height, width] = shape;
  const source = coloured(image, channels);
  const fit = Math.min(height / source.shape[1], width / source.shape[2]);
  const result = affine(source, moves, fit, height, width);
  hide(result, moves.oc);
  shake(result, moves.no);
  return result;
}

/** Convert between gray and color. */
function coloured(/** @type {Image} */ image, /** @type {number} */ channels) {
  const [had, height, width] = image.shape;
  if (had === channels) return image;
  const size = height * width;
  const data = new Float32Array(channels * size);
  for (let i = 0; i < size; i++) {
    let sum = 0;
    for (let c = 0; c < had; c++) sum += image.data[c * size + i];
    for (let c = 0; c < channels; c++) data[c * size + i] = sum / had;
  }
  return { shape: [channels, height, width], data };
}

function affine(/** @type {Image} */ image, /** @type {Moves} */ moves, fit, height, width) {
  const [channels, high, wide] = image.shape;
  const angle = (moves.rot * Math.PI) / 180;
  const cos = Math.cos(angle), sin = Math.sin(angle), scale = moves.sc * fit;
  const a = cos * scale, b = (cos * moves.sh + sin) * scale;
  const c = -sin * scale, d = (cos - sin * moves.sh) * scale;
  const det = a * d - b * c;
  const data = new Float32Array(channels * height * width);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const u = x - (width - 1) / 2 - moves.x * fit, v = y - (height - 1) / 2 - moves.y * fit;
      const px = (d * u - b * v) / det + (wide - 1) / 2;
      const py = (a * v - c * u) / det + (high - 1) / 2;
      const left = Math.floor(px), top = Math.floor(py);
      for (let dy = 0; dy < 2; dy++) {
        for (let dx = 0; dx < 2; dx++) {
          const sx = left + dx, sy = top + dy;
          if (sx < 0 || sy < 0 || sx >= wide || sy >= high) continue;
          const share = (1 - Math.abs(px - sx)) * (1 - Math.abs(py - sy));
          for (let k = 0; k < channels; k++) {
            data[(k * height + y) * width + x] += share * image.data[(k * high + sy) * wide + sx];
          }
        }
      }
    }
  }
  return { shape: [channels, height, width], data };
}

/** Add a black square in the middle, with this share of the image's side. */
function hide(/** @type {Image} */ image, /** @type {number} */ share) {
  const [channels, height, width] = image.shape;
  const side = share * Math.min(height, width);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const far = Math.max(Math.abs(y + 0.5 - height / 2), Math.abs(x + 0.5 - width / 2));
      if (far < side / 2) {
        for (let k = 0; k < channels; k++) image.data[(k * height + y) * width + x] = 0;
      }
    }
  }
}

/** Add normal noise, the same at every call, so that results can be reproduced. */
function shake(/** @type {Image} */ image, /** @type {number} */ deviation) {
  let state = 1;
  const next = () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return (state + 1) / 4294967297;
  };
  for (let i = 0; i < image.data.length; i++) {
    const normal = deviation ? Math.sqrt(-2 * Math.log(next())) * Math.cos(2 * Math.PI * next()) : 0;
    image.data[i] = Math.min(1, Math.max(0, image.data[i] + deviation * normal));
  }
}
