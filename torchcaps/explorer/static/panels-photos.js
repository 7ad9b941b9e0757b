// Panels of photographs: how well classes decode to features, and nearest training images.

import { className, per } from "./answers.js";
import { heat, make, picture, scale } from "./draw.js";

export function nearest(side) {
  const body = make("div");
  const update = ({ nearest: { predicted, images, labels, similarity } }) => {
    const shape = images.shape.slice(1);
    body.replaceChildren(
      make("p", { class: "words" }, `By the pose of “${className(side, predicted.data[0])}”:`),
      make("div", { class: "pictures" }, ...Array.from(labels.data, (label, n) => {
        const pixels = Float32Array.from(per(images, n), (v) => v / 255);
        const name = label < 0 ? "" : `${className(side, label)} `;
        return picture(pixels, shape, `${name}${similarity.data[n].toFixed(3)}`);
      })),
    );
  };
  return { body, update };
}

export function errors(side) {
  const body = make("div");
  const update = ({ errors: { classes, errors } }, image) => {
    const size = errors.shape.slice(1), most = Math.max(...errors.data);
    body.replaceChildren(make("div", { class: "pictures" }, ...Array.from(classes.data, (number, n) => {
      const name = className(side, number), map = per(errors, n);
      const mean = map.reduce((sum, v) => sum + v, 0) / map.length;
      const canvas = make("canvas", { role: "img", "aria-label": `error of features by ${name}` });
      heat(canvas, map, size, image, most);
      return make("figure", {}, canvas, make("figcaption", {}, `${name}: ${mean.toFixed(2)}`));
    })), scale(most, "squared error"));
  };
  return { body, update };
}
