"""Free-form inference for a page without a server: where a search starts, and one step's slope.

The page adds the steps up, as Adam does. Both are questions of their own, which an exported page
alone asks; the server answers `steps` at once.
"""

from typing import Any

import torch
from torch import Tensor

from torchcaps.analysis.search import Numbers, bounds
from torchcaps.explorer.questions import Parts, Question, Tensors, explained
from torchcaps.explorer.wire import Shape


def _start(model: Any, image: Tensor) -> tuple[Numbers, Tensor, Tensor | None]:
    """How the latent numbers of an image lie in a row, what the encoder says, and its frame."""
    seen = model.look(image[None])
    layers = model.infer(seen.views)
    numbers = Numbers(model, layers)
    return numbers, numbers.flat(layers)[0], seen.turns


class Start(Question):
    """The latent numbers of an image as the encoder has them, in a row."""

    name = "steps-start"

    def lacks(self, model: Any) -> str:
        if Parts().lacks(model):
            return Parts().lacks(model)
        return "" if model.options.posterior == "delta" else "Its posterior is more than a point"

    def answer(self, model: Any, given: Tensors) -> Tensors:
        _, flat, turns = _start(model, given["image"])
        return {"flat": flat} if turns is None else {"flat": flat, "turns": turns[0]}


class Step(Question):
    """The bound at these numbers, its slope in each of them, and what they draw."""

    name = "steps-next"

    def lacks(self, model: Any) -> str:
        return Start().lacks(model)

    def takes(self, model: Any) -> dict[str, Shape]:
        with torch.no_grad():
            shape = model.config.image_shape
            found = Start().answer(model, {"image": torch.full(shape, 0.5)})
        return {"image": shape, **{name: tuple(t.shape) for name, t in found.items()}}

    def answer(self, model: Any, given: Tensors) -> Tensors:
        image = given["image"]
        numbers, _, _ = _start(model, torch.full_like(image, 0.5))
        turns = given["turns"][None] if "turns" in given else None

        def height(flat: Tensor) -> Tensor:
            return bounds(model, image[None], numbers.layers(flat[None]), turns)[0]

        slope, found = torch.func.grad_and_value(height)(given["flat"])
        now = explained(model, image[None], numbers.layers(given["flat"][None]), turns)
        return {"height": found[None], "slope": slope, **{k: now[k] for k in ("drawn", "coloured")}}
