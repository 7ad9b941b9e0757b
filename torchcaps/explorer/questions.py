"""What a page may ask of a model: tensors in, tensors out, one class a question.

A question says why it does not apply to a model, which tensors it takes, and answers it for one
image. Nothing here knows of HTTP, so that a file for a browser can answer the same questions.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor

from torchcaps.analysis.drawing import value_range
from torchcaps.analysis.free_form import refine
from torchcaps.analysis.parts import by_template, coloured
from torchcaps.analysis.routing import received_by
from torchcaps.errors import TorchcapsError
from torchcaps.explorer.wire import Shape
from torchcaps.layers.patches import from_patches, to_patches
from torchcaps.layers.routed import RoutedCaps
from torchcaps.layers.templates import compose
from torchcaps.models import CapsuleModel, Output
from torchcaps.models.predicting import chances
from torchcaps.models.tracing import twin
from torchcaps.routing.window import Window, unfold

Tensors = dict[str, Tensor]
EDGES = 64
"""Edges that are told of a pass: the strongest."""
STEPS = {"adam": 30, "levenberg": 10}
"""Steps of free-form inference, by method."""


class Question:
    """One thing that can be asked; its name is its address."""

    name: ClassVar[str] = ""

    def lacks(self, model: CapsuleModel) -> str:
        """Why a model cannot be asked this; empty where it can."""
        raise NotImplementedError

    def takes(self, model: CapsuleModel) -> dict[str, Shape]:
        return {"image": model.config.image_shape}

    def answer(self, model: CapsuleModel, given: Tensors) -> Tensors:
        raise NotImplementedError


class Encode(Question):
    """Classes, capsules and the drawing of an image."""

    name = "encode"

    def lacks(self, model: CapsuleModel) -> str:
        return "" if model.provides & {"logits", "redraw"} else "It has neither classes nor drawing"

    def answer(self, model: CapsuleModel, given: Tensors) -> Tensors:
        output = model(given["image"][None])
        found: Tensors = {}
        if output.logits is not None:
            found["chances"] = chances(output)[0]
            found["scores"] = found["chances"] if output.scores is None else output.scores[0]
        if output.drawable is not None and "decode" in model.provides:
            found["capsules"] = output.drawable[0]
        if output.reconstruction is not None:
            found["drawn"] = output.reconstruction[0]
        return found


class Decode(Question):
    """Drawings of capsules that a hand has moved."""

    name = "decode"

    def lacks(self, model: CapsuleModel) -> str:
        return "" if "decode" in model.provides else "It draws nothing from capsules"

    def takes(self, model: CapsuleModel) -> dict[str, Shape]:
        with torch.no_grad():
            poses = model.encode(torch.zeros(1, *model.config.image_shape)).drawable
        assert poses is not None
        return {"poses": (None, *poses.shape[1:]), "label": (1,)}

    def answer(self, model: CapsuleModel, given: Tensors) -> Tensors:
        """label: the class that a conditional decoder draws; others do not look at it."""
        poses = given["poses"]
        if "logits" not in model.provides:
            return {"drawn": model.decode(poses)}
        label = given["label"].long().clamp(0, poses.shape[1] - 1)
        return {"drawn": model.decode(poses, label.expand(poses.shape[0]))}


class Where(Question):
    """What each class receives from each place."""

    name = "where"

    def lacks(self, model: CapsuleModel) -> str:
        if "logits" not in model.provides:
            return "It has no classes"
        try:
            with torch.no_grad():
                image = torch.rand(1, *model.config.image_shape)
                coupling, _ = received_by(model.encode(image, coupling=True))
        except TorchcapsError as error:
            return str(error).rstrip(".")
        even = bool((coupling == coupling.flatten()[0]).all())
        return "Every child gives every class the same share" if even else ""

    def answer(self, model: CapsuleModel, given: Tensors) -> Tensors:
        return {"received": received_by(model.encode(given["image"][None], coupling=True))[1]}


def _strength(layer: Any) -> Tensor:
    """Activations of a layer's capsules, or their lengths, without the batch."""
    return (layer.poses.norm(dim=-1) if layer.activations is None else layer.activations)[0]


def _edges(coupling: Tensor, below: Tensor, window: Window | None) -> Tensor:
    """The strongest of: share of a child times its strength. -> [EDGES,3] child, parent, weight

    coupling [I,J], [L,I,J] or [H',W',C,J]; below [...]: strengths, in whose flat order children are
    numbered; parents by their flat place and type
    """
    flat = below.flatten()
    if window is not None:
        number = torch.arange(1, flat.numel() + 1, dtype=torch.float32).view(1, *below.shape, 1)
        children = unfold(number, window)[0, ..., 0].long() - 1  # outside the grid: -1
        weight = torch.where(children < 0, 0.0, flat[children.clamp(min=0)])
    else:
        children = torch.arange(flat.numel()).view(coupling.shape[:-1])
        weight = flat.view(coupling.shape[:-1])
    sent = coupling * weight[..., None]
    types = coupling.shape[-1]
    places = torch.zeros(coupling.shape[:-1], dtype=torch.long)
    if coupling.dim() > 2:
        grid = coupling.shape[:-2]
        places = torch.arange(grid.numel()).view(*grid, 1).expand(coupling.shape[:-1]) * types
    parents = places[..., None] + torch.arange(types)
    best, at = sent.flatten().topk(min(EDGES, sent.numel()))
    child = children[..., None].expand_as(sent).flatten()[at]
    return torch.stack([child.float(), parents.flatten()[at].float(), best], 1)


class Trace(Question):
    """The strongest couplings of every layer after each pass, and how strong its capsules are."""

    name = "trace"

    def lacks(self, model: CapsuleModel) -> str:
        if "logits" not in model.provides:
            return "It has no classes"
        return "" if any(isinstance(m, RoutedCaps) for m in model.modules()) else "Nothing routes"

    def answer(self, model: CapsuleModel, given: Tensors) -> Tensors:
        image = given["image"][None]
        output: Output = model.encode(image)
        below = [_strength(layer) for layer in output.layers]
        layers = [m for m in model.modules() if isinstance(m, RoutedCaps)]
        traced = model.trace(image)
        found: Tensors = {"0": below[0]}
        for number, (passes, layer) in enumerate(zip(traced, layers, strict=True), 1):
            window = getattr(layer, "window", None)
            for count, one in enumerate(passes, 1):
                assert one.coupling is not None
                found[f"{number}.{count}"] = _strength(one)
                found[f"{number}.{count}.edges"] = _edges(
                    one.coupling[0].float(), below[number - 1].float(), window
                )
        if "passes" in model.provides:
            found |= self._by_pass(model, traced)
        return found

    @staticmethod
    def _by_pass(model: Any, traced: Any) -> Tensors:
        """After each pass what parents receive, how much they changed, and the class scores."""
        found: Tensors = {}
        for number, passes in enumerate(traced, 1):
            for count, one in enumerate(passes, 1):
                found[f"{number}.{count}.received"] = one.coupling[0].float().sum(-2)
                if count > 1:
                    before = passes[count - 2].poses
                    moved = (one.poses - before).norm() / before.norm().clamp(min=1e-12)
                    found[f"{number}.{count}.change"] = moved[None]
                if number == len(traced):
                    found[f"{number}.{count}.logits"] = model.head(one.poses).squeeze(-1)[0]
        return found


class Hide(Question):
    """What a masked autoencoder draws of patches that it is not shown."""

    name = "hide"

    def lacks(self, model: CapsuleModel) -> str:
        return "" if "draw" in model.provides else "It draws no hidden patches"

    def takes(self, model: Any) -> dict[str, Shape]:
        return {**super().takes(model), "hidden": (model.length,)}

    def answer(self, model: Any, given: Tensors) -> Tensors:
        hidden = given["hidden"] > 0.5
        hidden = hidden & ~hidden.all()  # of nothing it can draw nothing: all hidden is all shown
        return self.drawn(model, given["image"], hidden, (~hidden).nonzero()[:, 0][None])

    def drawn(self, model: Any, image: Tensor, hidden: Tensor, rows: Tensor) -> Tensors:
        """The same where it is known which patches are shown; rows [1,V]"""
        image = image[None]
        output = model.encode(image, rows)
        size, side = model.options.patch_size, model.side
        drawn = model.patch_pixels(model.draw(output.layers[-1], rows).float(), image)
        patches = to_patches(image, size)
        error = (drawn - patches).square().mean(-1)[0]
        shown = torch.where(hidden[None, :, None], drawn, patches)
        return {
            "drawn": from_patches(shown, size, side).clamp(0, 1)[0],
            "error": torch.where(hidden, error, torch.zeros_like(error)),
        }


class Ranks(Question):
    """Which latent capsules an image calls on, and what each of them draws."""

    name = "ranks"

    def lacks(self, model: CapsuleModel) -> str:
        return "" if "ranks" in model.provides else "It does not rank its capsules"

    def answer(self, model: Any, given: Tensors) -> Tensors:
        output = model.encode(given["image"][None])
        ranking, poses, seen = output.rankings[-1], output.capsules[0], output.drawable[0]
        count = poses.shape[0]
        each = torch.eye(count)[:, :, None]
        drawn = model.decode(torch.cat([seen[None], poses * each, seen * (1 - each)]))
        return {
            "support": ranking.support[0], "rank": ranking.rank[0].float(),
            "mask": ranking.mask[0], "poses": poses, "drawn": drawn[0],
            "alone": drawn[1 : count + 1], "without": drawn[count + 1 :],
        }  # fmt: skip


def explained(model: Any, image: Tensor, layers: Any, turns: Tensor | None) -> Tensors:
    """The drawing, its parts in colours, and who owns them."""
    bound = model.bound_of(image, layers, turns=turns)
    parts, chosen = bound.layers[0], bound.selections[0]
    poses = parts.poses if bound.turns is None else compose(bound.turns[:, None], parts.poses)
    on = parts.logits.sigmoid()
    return {
        "drawn": bound.drawn[0].clamp(0, 1),
        "coloured": coloured(model, poses, on, chosen.argmax(-1))[0].clamp(0, 1),
        "templates": by_template(model, poses, on)[0].clamp(0, 1),
        "presence": on[0],
        "selection": chosen[0].softmax(-1),
        "poses": poses[0],
    }


class Parts(Question):
    """Parts of a generative model, and the objects that most likely have them."""

    name = "parts"

    def lacks(self, model: CapsuleModel) -> str:
        return "" if hasattr(model, "process") and "parts" in model.provides else "It has no parts"

    def answer(self, model: Any, given: Tensors) -> Tensors:
        image = given["image"][None]
        seen = model.look(image)
        return explained(model, image, model.infer(seen.views), seen.turns)


class Steps(Question):
    """Free-form inference: the bound by steps, and the drawing after each of them."""

    name = "steps"

    def lacks(self, model: CapsuleModel) -> str:
        return Parts().lacks(model)

    def answer(self, model: Any, given: Tensors) -> Tensors:
        image, found, own = given["image"][None], {}, twin(model)
        for method, steps in STEPS.items():
            drawn: list[Tensor] = []
            coloured: list[Tensor] = []

            def told(layers: Any, turns: Tensor | None) -> None:
                now = explained(model, image, layers, turns)
                drawn.append(now["drawn"])  # noqa: B023 - heard before the loop goes on
                coloured.append(now["coloured"])  # noqa: B023

            refined = refine(own, image, steps, method=method, told=told)
            found[f"{method}.curve"] = refined.curve[:, 0]
            found[f"{method}.drawn"] = torch.stack(drawn)
            found[f"{method}.coloured"] = torch.stack(coloured)
        return found


QUESTIONS: dict[str, Question] = {
    q.name: q for q in (Encode(), Decode(), Where(), Trace(), Hide(), Ranks(), Parts(), Steps())
}


@torch.no_grad()
def about(model: CapsuleModel) -> dict[str, Any]:
    """What a page must know of a model to draw its panels."""
    lacks = {name: q.lacks(model) for name, q in QUESTIONS.items()}
    known: dict[str, Any] = {
        "family": model.config.family,
        "parameters": model.num_parameters,
        "image": list(model.config.image_shape),
        "classes": list(model.class_names),
        "questions": [name for name, reason in lacks.items() if not reason],
        "lacks": {name: reason for name, reason in lacks.items() if reason},
    }
    image = torch.full((1, *model.config.image_shape), 0.5)
    said = {} if lacks["encode"] else QUESTIONS["encode"].answer(model, {"image": image[0]})
    known["encode"] = list(said)
    if "scores" in said:
        known["even"] = bool((said["scores"].sum() - 1).abs() < 1e-4)
    if not lacks["decode"]:
        known["range"] = list(value_range(model, image[0]))
        known["capsules"] = list(QUESTIONS["decode"].takes(model)["poses"][1:])
    if not lacks["ranks"]:
        known["steepness"] = model.config.gamma  # pyright: ignore
    if not lacks["hide"]:
        known["patch"] = model.options.patch_size  # pyright: ignore
    if not lacks["trace"]:
        output = model.encode(image)
        known["layers"] = [list(_strength(layer).shape) for layer in output.layers]
        known["passes"] = [len(passes) for passes in model.trace(image)]
    return known
