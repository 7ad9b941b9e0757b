"""Initial weights from another run: which tensors are loaded, adapted, or new."""

from dataclasses import dataclass, field
from math import isqrt

import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps.errors import TorchcapsError
from torchcaps.models import Model
from torchcaps.models.heads import class_axes
from torchcaps.training.load import load

MAX_NAMES = 6
"""Tensors that a message names; it counts the others."""


@dataclass
class InitReport:
    """Report on each tensor of a model that starts from another's weights."""

    source: str
    loaded: list[str] = field(default_factory=list)
    adapted: dict[str, list[str]] = field(default_factory=dict)
    """Adapted tensors, and the way."""
    new: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"Initial weights: {len(self.loaded)} tensors of {self.source}"]
        lines += [f"{how}: {listed(names)}" for how, names in self.adapted.items()]
        lines += [f"new: {listed(self.new)}"] if self.new else []
        return "; ".join(lines) + "."


def listed(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def init_weights(
    model: Model, source: str, classes: tuple[str, ...] = (), partly: bool = False
) -> InitReport:
    """Load the source's tensors by name; match classes by name, adapt grids and color channels.

    partly: tensors that the source lacks keep their random initial values; else that is an error,
    except for what a later stage of the same network adds
    """
    pretrained = load(source)
    tensors, report = pretrained.state_dict(), InitReport(source)
    stages = [getattr(m.config, "stage", None) for m in (pretrained, model)]
    unknown = [name for name in classes if name not in pretrained.class_names]
    axes = class_axes(model)
    state: dict[str, Tensor] = {}
    missing = []
    for name, target in model.state_dict().items():
        tensor = tensors.get(name)
        fit, how = None, ""
        by_class = name in axes and classes and pretrained.class_names not in ((), classes)
        if tensor is not None and by_class:
            if not unknown and tensor.shape[axes[name]] % len(pretrained.class_names) == 0:
                fit = _select_classes(tensor, axes[name], pretrained.class_names, classes)
                how = "classes matched by name"
        elif tensor is not None and tensor.shape == target.shape:
            fit = tensor
        elif tensor is not None:
            channels = pretrained.config.in_channels, model.config.in_channels
            fit, how = _adapted(name, tensor, target, *channels)
        if fit is not None and fit.shape == target.shape:
            state[name] = fit
            report.loaded.append(name)
            if how:
                report.adapted.setdefault(how, []).append(name)
        else:
            report.new.append(name)
            missing += [name] if tensor is not None or stages[0] == stages[1] else []
    if not any(name in state for name, _ in model.named_parameters()):
        raise TorchcapsError(f"{source}: none of its weights fit this model.")
    if missing and not partly:
        raise TorchcapsError(_refusal(source, missing, pretrained.class_names, unknown, axes))
    model.load_state_dict(state, strict=False)
    return report


def _select_classes(
    tensor: Tensor, axis: int, known: tuple[str, ...], classes: tuple[str, ...]
) -> Tensor:
    """The entries of some classes, in their order; a class has one entry or several."""
    rows = torch.tensor([known.index(name) for name in classes])
    return tensor.unflatten(axis, (len(known), -1)).index_select(axis, rows).flatten(axis, axis + 1)


def _refusal(
    source: str, missing: list[str], known: tuple[str, ...], unknown: list[str], axes: dict
) -> str:
    hint = "Add --start-partly (start_partly=True) to initialize those at random."
    if known and unknown and all(name in axes for name in missing):
        return (
            f"{source} has no weights for the classes {listed(unknown)}; it has "
            f"{listed(list(known))}. {hint}"
        )
    return f"{source} has no weights that fit {listed(missing)} of this model. {hint}"


def _adapted(
    name: str, tensor: Tensor, target: Tensor, channels: int, target_channels: int
) -> tuple[Tensor | None, str]:
    """A tensor adapted to another image size or number of color channels."""
    if name.endswith(("places", "pos_embed")) and tensor.shape[-1] == target.shape[-1]:
        return _interpolated(tensor, target.shape[-2]), "positions interpolated"
    if (
        {channels, target_channels} == {1, 3}
        and tensor.ndim > 1
        and tensor.shape[1] * target_channels == target.shape[1] * channels
    ):
        split = tensor.unflatten(1, (channels, -1))
        if target_channels == 1:
            split = split.sum(1, keepdim=True)
        else:
            split = split.expand(-1, 3, *split.shape[2:]) / 3
        return split.flatten(1, 2), "color channels adapted"
    return None, ""


def _interpolated(positions: Tensor, length: int) -> Tensor | None:
    """Position embeddings of a square grid on another one; tokens before it stay. [...,L,C]"""
    rows = positions.reshape(-1, positions.shape[-1])
    for first in (0, 1):  # a class token
        old, new = isqrt(len(rows) - first), isqrt(length - first)
        if old**2 + first == len(rows) and new**2 + first == length:
            grid = rows[first:].T.reshape(1, -1, old, old)
            grid = F.interpolate(grid, (new, new), mode="bicubic", align_corners=False)
            resized = torch.cat([rows[:first], grid[0].flatten(1).T])
            return resized.reshape(*positions.shape[:-2], length, -1)
    return None
