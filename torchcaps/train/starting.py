"""Weights that a run begins with: which are taken, which are made to fit, which begin anew."""

from dataclasses import dataclass, field
from math import isqrt

import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps.errors import TorchcapsError
from torchcaps.models import CapsuleModel
from torchcaps.models.heads import class_axes
from torchcaps.train.load import load

NAMED = 6
"""Tensors that a sentence names; it counts the others."""


@dataclass
class Begun:
    """What became of each tensor of a model that began with another's weights."""

    source: str
    taken: list[str] = field(default_factory=list)
    fitted: dict[str, list[str]] = field(default_factory=dict)
    """How tensors were made to fit, and which."""
    anew: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        said = [f"Began with {len(self.taken)} tensors of {self.source}"]
        said += [f"{how}: {listed(names)}" for how, names in self.fitted.items()]
        said += [f"anew: {listed(self.anew)}"] if self.anew else []
        return "; ".join(said) + "."


def listed(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def take_weights(
    model: CapsuleModel, source: str, classes: tuple[str, ...] = (), partly: bool = False
) -> Begun:
    """The source's tensors by name, matched to `classes` by their names, and made to fit where a
    grid of places or the number of colours differs.

    partly: what the source lacks begins anew; else that is an error, but for what a later stage of
    the same network adds
    """
    given = load(source)
    tensors, begun = given.state_dict(), Begun(source)
    stages = [getattr(m.config, "stage", None) for m in (given, model)]
    unknown = [name for name in classes if name not in given.class_names]
    axes = class_axes(model)
    found: dict[str, Tensor] = {}
    lacking = []
    for name, own in model.state_dict().items():
        had = tensors.get(name)
        fit, how = None, ""
        if had is not None and name in axes and classes and given.class_names not in ((), classes):
            if not unknown and had.shape[axes[name]] % len(given.class_names) == 0:
                fit = _chosen(had, axes[name], given.class_names, classes)
                how = "classes matched by name"
        elif had is not None and had.shape == own.shape:
            fit = had
        elif had is not None:
            fit, how = _fitted(name, had, own, given.config.in_channels, model.config.in_channels)
        if fit is not None and fit.shape == own.shape:
            found[name] = fit
            begun.taken.append(name)
            if how:
                begun.fitted.setdefault(how, []).append(name)
        else:
            begun.anew.append(name)
            lacking += [name] if had is not None or stages[0] == stages[1] else []
    if not any(name in found for name, _ in model.named_parameters()):
        raise TorchcapsError(f"{source}: none of its weights fit this model.")
    if lacking and not partly:
        raise TorchcapsError(_refusal(source, lacking, given.class_names, unknown, axes))
    model.load_state_dict(found, strict=False)
    return begun


def _chosen(had: Tensor, axis: int, known: tuple[str, ...], classes: tuple[str, ...]) -> Tensor:
    """What a tensor has for some of its classes, in their order, one or several entries a class."""
    rows = torch.tensor([known.index(name) for name in classes])
    return had.unflatten(axis, (len(known), -1)).index_select(axis, rows).flatten(axis, axis + 1)


def _refusal(
    source: str, lacking: list[str], known: tuple[str, ...], unknown: list[str], axes: dict
) -> str:
    anew = "--start-partly begins that anew."
    if known and unknown and all(name in axes for name in lacking):
        return (
            f"{source} does not know the classes {listed(unknown)}; it knows "
            f"{listed(list(known))}. {anew}"
        )
    return f"{source} does not have what fits {listed(lacking)} of this model. {anew}"


def _fitted(
    name: str, had: Tensor, own: Tensor, colours: int, wanted: int
) -> tuple[Tensor | None, str]:
    """A tensor of another image size or number of colours, made to fit."""
    if name.endswith(("places", "pos_embed")) and had.shape[-1] == own.shape[-1]:
        return _interpolated(had, own.shape[-2]), "places interpolated"
    if (
        {colours, wanted} == {1, 3}
        and had.ndim > 1
        and had.shape[1] * wanted == (own.shape[1] * colours)
    ):
        split = had.unflatten(1, (colours, -1))
        split = split.sum(1, keepdim=True) if wanted == 1 else split.expand(-1, 3, *split.shape[2:])
        return split.flatten(1, 2) / (1 if wanted == 1 else 3), "colours folded"
    return None, ""


def _interpolated(places: Tensor, length: int) -> Tensor | None:
    """Embeddings of a square grid on another one; tokens before the grid stay. [...,L,C]"""
    had = places.reshape(-1, places.shape[-1])
    for first in (0, 1):  # a class token
        old, new = isqrt(len(had) - first), isqrt(length - first)
        if old**2 + first == len(had) and new**2 + first == length:
            grid = had[first:].T.reshape(1, -1, old, old)
            grid = F.interpolate(grid, (new, new), mode="bicubic", align_corners=False)
            made = torch.cat([had[:first], grid[0].flatten(1).T])
            return made.reshape(*places.shape[:-2], length, -1)
    return None
