// Panels of photographs: how well classes decode to features.

import { className, per } from "./answers.js";
import { heat, make, scale } from "./draw.js";

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
