"""Questions that a page asks a model: tensors in, tensors out, one class per question.

A question states why it does not apply to a model, the shapes of its inputs, and computes its
answer for one image. This module does not use HTTP, so exported pages use the same questions.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor

from torchcaps.analysis.routing_maps import SHOWN_CLASSES, received_by, why_no_map
from torchcaps.analysis.traversal import value_range
from torchcaps.explorer.wire import Shape
from torchcaps.layers.capsules import RoutedCaps
from torchcaps.layers.templates import compose
from torchcaps.models import Model, Output
from torchcaps.models.generative.figures import by_template, colored
from torchcaps.models.generative.inference import refine
from torchcaps.models.mcae.patches import from_patches, to_patches
from torchcaps.models.photos import PhotoModel
from torchcaps.models.predict import class_probabilities
from torchcaps.models.tracing import twin
from torchcaps.routing.window import Window, unfold

Tensors = dict[str, Tensor]
EDGES = 64
"""Number of edges in the answer for one pass, the strongest ones."""
STEPS = {"adam": 30, "levenberg": 10}
"""Number of steps of free-form inference, by method."""


class Question:
    """One question; its name is part of the URL."""

    name: ClassVar[str] = ""

    def lacks(self, model: Model) -> str:
        """Why the question does not apply to a model; empty if it does."""
        raise NotImplementedError

    def input_shapes(self, model: Model) -> dict[str, Shape]:
        """Shapes of the inputs by name; None: a free size."""
        return {"image": model.config.image_shape}

    def answer(self, model: Model, inputs: Tensors) -> Tensors:
        """Outputs by name."""
        raise NotImplementedError


class Encode(Question):
    """Class probabilities, capsules and reconstruction of an image."""

    name = "encode"

    def lacks(self, model: Model) -> str:
        decodes = model.provides & {"logits", "reconstruct"}
        return "" if decodes else "It has no classes and no decoder"

    def answer(self, model: Model, inputs: Tensors) -> Tensors:
        output = model(inputs["image"][None])
        outputs: Tensors = {}
        if output.logits is not None:
            outputs["chances"] = class_probabilities(output, model.temperature)[0]
            outputs["scores"] = outputs["chances"] if output.scores is None else output.scores[0]
        if output.decoder_input is not None and "decode" in model.provides:
            outputs["capsules"] = output.decoder_input[0]
        if output.reconstruction is not None:
            outputs["drawn"] = output.reconstruction[0]
        return outputs


class Decode(Question):
    """Decoded images of edited capsules."""

    name = "decode"

    def lacks(self, model: Model) -> str:
        return "" if "decode" in model.provides else "It has no decoder of capsules"

    def input_shapes(self, model: Model) -> dict[str, Shape]:
        with torch.no_grad():
            poses = model.encode(torch.zeros(1, *model.config.image_shape)).decoder_input
        assert poses is not None
        return {"poses": (None, *poses.shape[1:]), "label": (1,)}

    def answer(self, model: Model, inputs: Tensors) -> Tensors:
        """label: the class for a conditional decoder; other decoders ignore it."""
        poses = inputs["poses"]
        if "logits" not in model.provides:
            return {"drawn": model.decode(poses)}
        label = inputs["label"].long().clamp(0, poses.shape[1] - 1)
        return {"drawn": model.decode(poses, label.expand(poses.shape[0]))}


class Where(Question):
    """Routing maps: what each class receives from each position."""

    name = "where"

    def lacks(self, model: Model) -> str:
        if "logits" not in model.provides:
            return "It has no classes"
        if isinstance(model, PhotoModel):
            return ""
        return why_no_map(model, torch.rand(model.config.image_shape)).rstrip(".")

    def answer(self, model: Model, inputs: Tensors) -> Tensors:
        if isinstance(model, PhotoModel):  # what a position says, not what a class receives alone
            labels = torch.arange(model.config.num_classes)[None]
            return {"received": model.position_votes(inputs["image"][None], labels)[0].clamp(min=0)}
        return {"received": received_by(model.encode(inputs["image"][None], coupling=True))[1]}


class Errors(Question):
    """Errors of the features as the likeliest classes decode to them, by position."""

    name = "errors"

    def lacks(self, model: Model) -> str:
        return "" if "feature-decoder" in model.provides else "It has no decoder of features"

    def answer(self, model: Any, inputs: Tensors) -> Tensors:
        features = model.forward_features(inputs["image"][None])
        logits = model.forward_capsules(features).logits[0]
        likeliest = logits.topk(min(SHOWN_CLASSES, len(logits))).indices
        return {
            "classes": likeliest.float(),
            "errors": model.position_errors(features, likeliest[None])[0],
        }


def _strength(layer: Any) -> Tensor:
    """Activations of the first image's capsules, or their lengths if they have none."""
    return (layer.poses.norm(dim=-1) if layer.activations is None else layer.activations)[0]


def _edges(coupling: Tensor, below: Tensor, window: Window | None) -> Tensor:
    """The largest products of coupling and strength. -> [EDGES,3] child, parent, weight

    coupling [I,J], [L,I,J] or [H',W',C,J]; below [...]: strengths of the children, which are
    numbered in its flat order; parents are numbered by position and type
    """
    flat = below.flatten()
    if window is not None:
        number = torch.arange(1, flat.numel() + 1, dtype=torch.float32).view(1, *below.shape, 1)
        children = unfold(number, window)[0, ..., 0].long() - 1  # -1: outside the grid
        weight = torch.where(children < 0, 0.0, flat[children.clamp(min=0)])
    else:
        children = torch.arange(flat.numel()).view(coupling.shape[:-1])
        weight = flat.view(coupling.shape[:-1])
    sent = coupling * weight[..., None]
    types = coupling.shape[-1]
    positions = torch.zeros(coupling.shape[:-1], dtype=torch.long)
    if coupling.dim() > 2:
        grid = coupling.shape[:-2]
        positions = torch.arange(grid.numel()).view(*grid, 1).expand(coupling.shape[:-1]) * types
    parents = positions[..., None] + torch.arange(types)
    best, index = sent.flatten().topk(min(EDGES, sent.numel()))
    child = children[..., None].expand_as(sent).flatten()[index]
    return torch.stack([child.float(), parents.flatten()[index].float(), best], 1)


class Trace(Question):
    """Strongest couplings and capsule activations of every layer after each routing pass."""

    name = "trace"

    def lacks(self, model: Model) -> str:
        if "logits" not in model.provides:
            return "It has no classes"
        routed = any(isinstance(m, RoutedCaps) for m in model.modules())
        return "" if routed else "It has no routing"

    def answer(self, model: Model, inputs: Tensors) -> Tensors:
        image = inputs["image"][None]
        output: Output = model.encode(image)
        below = [_strength(layer) for layer in output.layers]
        layers = [m for m in model.modules() if isinstance(m, RoutedCaps)]
        traced = model.trace(image)
        outputs: Tensors = {"0": below[0]}
        for number, (passes, layer) in enumerate(zip(traced, layers, strict=True), 1):
            window = getattr(layer, "window", None)
            for count, capsules in enumerate(passes, 1):
                assert capsules.coupling is not None
                outputs[f"{number}.{count}"] = _strength(capsules)
                outputs[f"{number}.{count}.edges"] = _edges(
                    capsules.coupling[0].float(), below[number - 1].float(), window
                )
        if "passes" in model.provides:
            outputs |= self._by_pass(model, traced)
        return outputs

    @staticmethod
    def _by_pass(model: Any, traced: Any) -> Tensors:
        """After each pass: coupling that parents receive, their relative change, class logits."""
        outputs: Tensors = {}
        for number, passes in enumerate(traced, 1):
            for count, capsules in enumerate(passes, 1):
                poses = capsules.poses
                outputs[f"{number}.{count}.received"] = capsules.coupling[0].float().sum(-2)
                if count > 1:
                    before = passes[count - 2].poses
                    change = (poses - before).norm() / before.norm().clamp(min=1e-12)
                    outputs[f"{number}.{count}.change"] = change[None]
                if number == len(traced):
                    outputs[f"{number}.{count}.logits"] = model.head(poses).squeeze(-1)[0]
        return outputs


class Hide(Question):
    """Hidden patches as a masked autoencoder reconstructs them."""

    name = "hide"

    def lacks(self, model: Model) -> str:
        return "" if "inpaint" in model.provides else "It does not reconstruct hidden patches"

    def input_shapes(self, model: Any) -> dict[str, Shape]:
        return {**super().input_shapes(model), "hidden": (model.length,)}

    def answer(self, model: Any, inputs: Tensors) -> Tensors:
        hidden = inputs["hidden"] > 0.5
        hidden = hidden & ~hidden.all()  # it needs a visible patch: if all are hidden, show all
        return self.decode(model, inputs["image"], hidden, (~hidden).nonzero()[:, 0][None])

    def decode(self, model: Any, image: Tensor, hidden: Tensor, rows: Tensor) -> Tensors:
        """Reconstruct the hidden patches; rows: numbers of the visible patches [1,V]."""
        image = image[None]
        output = model.encode(image, rows)
        size, side = model.options.patch_size, model.side
        decoded = model.patch_pixels(model.inpaint(output.layers[-1], rows).float(), image)
        patches = to_patches(image, size)
        error = (decoded - patches).square().mean(-1)[0]
        mixed = torch.where(hidden[None, :, None], decoded, patches)
        return {
            "drawn": from_patches(mixed, size, side).clamp(0, 1)[0],
            "error": torch.where(hidden, error, torch.zeros_like(error)),
        }


class Ranks(Question):
    """Support and rank of latent capsules, and what each of them decodes to."""

    name = "ranks"

    def lacks(self, model: Model) -> str:
        return "" if "ranks" in model.provides else "It does not rank its capsules"

    def answer(self, model: Any, inputs: Tensors) -> Tensors:
        output = model.encode(inputs["image"][None])
        ranking, poses, masked = output.rankings[-1], output.capsules[0], output.decoder_input[0]
        count = poses.shape[0]
        only = torch.eye(count)[:, :, None]
        decoded = model.decode(torch.cat([masked[None], poses * only, masked * (1 - only)]))
        return {
            "support": ranking.support[0], "rank": ranking.rank[0].float(),
            "mask": ranking.mask[0], "poses": poses, "drawn": decoded[0],
            "alone": decoded[1 : count + 1], "without": decoded[count + 1 :],
        }  # fmt: skip


def explain(model: Any, image: Tensor, layers: Any, turns: Tensor | None) -> Tensors:
    """Reconstruction, its parts colored by object and by template, and the parts' objects."""
    bound = model.bound_of(image, layers, turns=turns)
    parts, chosen = bound.layers[0], bound.selections[0]
    poses = parts.poses if bound.turns is None else compose(bound.turns[:, None], parts.poses)
    on = parts.logits.sigmoid()
    return {
        "drawn": bound.drawn[0].clamp(0, 1),
        "coloured": colored(model, poses, on, chosen.argmax(-1))[0].clamp(0, 1),
        "templates": by_template(model, poses, on)[0].clamp(0, 1),
        "presence": on[0],
        "selection": chosen[0].softmax(-1),
        "poses": poses[0],
    }


class Parts(Question):
    """Parts of a generative model, and the objects that most likely own them."""

    name = "parts"

    def lacks(self, model: Model) -> str:
        return "" if hasattr(model, "process") and "parts" in model.provides else "It has no parts"

    def answer(self, model: Any, inputs: Tensors) -> Tensors:
        image = inputs["image"][None]
        look = model.look(image)
        return explain(model, image, model.infer(look.views), look.turns)


class Steps(Question):
    """Free-form inference: the bound and the reconstruction after each step."""

    name = "steps"

    def lacks(self, model: Model) -> str:
        return Parts().lacks(model)

    def answer(self, model: Any, inputs: Tensors) -> Tensors:
        image, outputs, copy = inputs["image"][None], {}, twin(model)
        for method, steps in STEPS.items():
            frames: list[Tensors] = []

            def record(layers: Any, turns: Tensor | None) -> None:
                frames.append(explain(model, image, layers, turns))  # noqa: B023 - called in refine

            refined = refine(copy, image, steps, method=method, callback=record)
            outputs[f"{method}.curve"] = refined.curve[:, 0]
            for name in ("drawn", "coloured"):
                outputs[f"{method}.{name}"] = torch.stack([frame[name] for frame in frames])
        return outputs


QUESTIONS: dict[str, Question] = {
    q.name: q
    for q in (Encode(), Decode(), Where(), Errors(), Trace(), Hide(), Ranks(), Parts(), Steps())
}


@torch.no_grad()
def about(model: Model) -> dict[str, Any]:
    """Facts about a model that a page needs for its panels."""
    lacks = {name: q.lacks(model) for name, q in QUESTIONS.items()}
    facts: dict[str, Any] = {
        "family": model.config.family,
        "parameters": model.num_parameters,
        "image": list(model.config.image_shape),
        "classes": list(model.class_names),
        "questions": [name for name, reason in lacks.items() if not reason],
        "lacks": {name: reason for name, reason in lacks.items() if reason},
    }
    image = torch.full((1, *model.config.image_shape), 0.5)
    outputs = {} if lacks["encode"] else QUESTIONS["encode"].answer(model, {"image": image[0]})
    facts["encode"] = list(outputs)
    if "scores" in outputs:
        facts["even"] = bool((outputs["scores"].sum() - 1).abs() < 1e-4)
    if not lacks["decode"]:
        facts["range"] = list(value_range(model, image[0]))
        facts["capsules"] = list(QUESTIONS["decode"].input_shapes(model)["poses"][1:])
    if not lacks["ranks"]:
        facts["steepness"] = model.config.gamma  # pyright: ignore
    if not lacks["hide"]:
        facts["patch"] = model.options.patch_size  # pyright: ignore
    if not lacks["trace"]:
        output = model.encode(image)
        facts["layers"] = [list(_strength(layer).shape) for layer in output.layers]
        facts["passes"] = [len(passes) for passes in model.trace(image)]
    return facts
