"""Free-form inference for a page without a server: the start, and the gradient of one step.

The page runs Adam on these two questions. Only exported pages ask them; the server answers `steps`
with one request.
"""

from typing import Any

import torch
from torch import Tensor

from torchcaps.explorer.questions import Parts, Question, Tensors, explain
from torchcaps.explorer.wire import Shape
from torchcaps.models.generative.search import Numbers, bounds


def _start(model: Any, image: Tensor) -> tuple[Numbers, Tensor, Tensor | None]:
    """Layout of an image's latent variables, the encoder's values as a vector, the rotation."""
    look = model.look(image[None])
    layers = model.infer(look.views)
    numbers = Numbers(model, layers)
    return numbers, numbers.flat(layers)[0], look.turns


class Start(Question):
    """The encoder's latent variables of an image as a vector."""

    name = "steps-start"

    def lacks(self, model: Any) -> str:
        if reason := Parts().lacks(model):
            return reason
        return "" if model.options.posterior == "delta" else "The posterior is not a point estimate"

    def answer(self, model: Any, inputs: Tensors) -> Tensors:
        _, flat, turns = _start(model, inputs["image"])
        return {"flat": flat} if turns is None else {"flat": flat, "turns": turns[0]}


class Step(Question):
    """The bound at a latent vector, its gradient, and the reconstruction."""

    name = "steps-next"

    def lacks(self, model: Any) -> str:
        return Start().lacks(model)

    def input_shapes(self, model: Any) -> dict[str, Shape]:
        with torch.no_grad():
            shape = model.config.image_shape
            start = Start().answer(model, {"image": torch.full(shape, 0.5)})
        return {"image": shape, **{name: tuple(t.shape) for name, t in start.items()}}

    def answer(self, model: Any, inputs: Tensors) -> Tensors:
        image = inputs["image"]
        numbers, _, _ = _start(model, torch.full_like(image, 0.5))
        turns = inputs["turns"][None] if "turns" in inputs else None

        def bound(flat: Tensor) -> Tensor:
            return bounds(model, image[None], numbers.layers(flat[None]), turns)[0]

        gradient, value = torch.func.grad_and_value(bound)(inputs["flat"])
        images = explain(model, image[None], numbers.layers(inputs["flat"][None]), turns)
        return {
            "height": value[None], "slope": gradient, "drawn": images["drawn"],
            "coloured": images["coloured"],
        }  # fmt: skip
