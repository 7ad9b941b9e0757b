"""How well a linear probe reads an image's in-plane rotation from the pose of its class.

Each image is rotated by its own angle. A ridge regression for each class predicts cosine
and sine of the angle from the pose of the image's class; beside it stands the same regression
on as many random projections of the feature map, which no training chose.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchcaps.data import Dataset, Split
from torchcaps.data.augment import Rotate
from torchcaps.errors import TorchcapsError
from torchcaps.functional import counter_uniform
from torchcaps.metrics.base import Metric, register_metric

if TYPE_CHECKING:
    from torchcaps.models import Model, Output

PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)
"""Candidates of the ridge, for inputs of variance one; validation images decide."""
BATCH = 64
VAL, TEST = 1001, 1002
"""Seeds of the angles of validation and test images; those of training count from zero."""


def class_poses(output: "Output", labels: Tensor) -> Tensor:
    """Poses of the images' classes, or without them a mean of child poses. labels [B] -> [B,E]

    The mean is weighted by coupling times activation: what a child sends to the class.
    """
    children, classes = output.layers[0], output.layers[-1]
    rows = torch.arange(len(labels), device=labels.device)
    if classes.poses is not None:
        return classes.poses[rows, labels].float()
    assert classes.coupling is not None and children.activations is not None
    weight = classes.coupling[rows, :, labels] * children.activations.flatten(1)
    mean = torch.einsum("bi,bid->bd", weight, children.poses.flatten(1, -2))
    return mean / weight.sum(1, keepdim=True).clamp(min=1e-9)


def rotated(split: Split, seed: int) -> tuple[Split, Tensor]:
    """Each image rotated by its own angle, and the angles in radians [N]."""
    turn, parts, angles = Rotate(180), [], []
    for rows in torch.arange(len(split), device=split.labels.device).split(BATCH):
        images = split.batch(rows).images
        u = counter_uniform(seed, rows, turn.num_uniforms)
        parts.append((turn.apply(images, turn.sample(u, images)) * 255).round().byte())
        angles.append(math.pi * (2 * u[:, 0] - 1))
    return replace(split, images=torch.cat(parts)), torch.cat(angles)


def ridge(inputs: Tensor, angles: Tensor, penalty: float) -> Tensor:
    """Weights of cosine and sine of an angle. [N,E+1] with ones last, [N] -> [E+1,2]"""
    wanted = torch.stack([angles.cos(), angles.sin()], 1)
    square = inputs.mT @ inputs
    added = torch.full((len(square),), penalty, dtype=square.dtype)
    added[-1] = 1e-9  # the constant is free
    return torch.linalg.solve(square + added.diag(), inputs.mT @ wanted)


def angle_error(predicted: Tensor, angles: Tensor) -> Tensor:
    """Degrees between predicted directions [N,2] and angles [N]. -> [N]

    >>> east = torch.tensor([[1.0, 0.0]])
    >>> round(angle_error(east, torch.tensor([math.pi / 2])).item())
    90
    """
    away = torch.atan2(predicted[:, 1], predicted[:, 0]) - angles
    return torch.atan2(away.sin(), away.cos()).abs().rad2deg()


class _Probe:
    """A ridge for each class on standardized inputs."""

    def __init__(self, inputs: Tensor, angles: Tensor, labels: Tensor, penalty: float):
        self.mean, self.std = inputs.mean(0), inputs.std(0).clamp(min=1e-9)
        x = self._standardized(inputs)
        self.weights = {
            int(y): ridge(x[labels == y], angles[labels == y], penalty) for y in labels.unique()
        }

    def _standardized(self, inputs: Tensor) -> Tensor:
        return torch.cat([(inputs - self.mean) / self.std, inputs.new_ones(len(inputs), 1)], 1)

    def error(self, inputs: Tensor, angles: Tensor, labels: Tensor) -> float:
        """Mean error in degrees; a class without training images counts as chance."""
        x, errors = self._standardized(inputs), torch.full_like(angles, 90.0)
        for y, weight in self.weights.items():
            own = labels == y
            errors[own] = angle_error(x[own] @ weight, angles[own])
        return float(errors.mean())


@register_metric("pose-angle", ("angle_pose", "angle_random"))
@dataclass
class PoseAngle(Metric):
    """Error, in degrees, of the in-plane angle read from class poses, and from random features."""

    copies: int = 4
    """Rotated copies of each training image."""

    def check(self, model: "Model", data: Dataset) -> None:
        with torch.no_grad():
            output = model.encode(data.val.batch(slice(0, 2)).images, coupling=True)
        layers = output.layers
        if not layers or (layers[-1].poses is None and layers[0].activations is None):
            raise TorchcapsError(
                f"pose-angle needs class capsules; {model.config.family} has none in this "
                "configuration."
            )

    def learn(self, model: "Model", data: Dataset) -> None:
        *train, angles, labels = self._inputs(model, data.train, range(self.copies))
        *val, val_angles, val_labels = self._inputs(model, data.val, (VAL,))
        self.probes = []
        for inputs, held_out in zip(train, val, strict=True):
            probes = [_Probe(inputs, angles, labels, penalty) for penalty in PENALTIES]
            errors = [probe.error(held_out, val_angles, val_labels) for probe in probes]
            self.probes.append(probes[errors.index(min(errors))])

    def score(self, model: "Model", data: Dataset, split: Split) -> dict[str, float]:
        *inputs, angles, labels = self._inputs(model, split, (TEST,))
        errors = [p.error(x, angles, labels) for p, x in zip(self.probes, inputs, strict=True)]
        return {"angle_pose": errors[0], "angle_random": errors[1]}

    @torch.no_grad()
    def _inputs(self, model: "Model", split: Split, seeds: Iterable[int]) -> tuple[Tensor, ...]:
        """Class poses, random projections of the features, angles and labels of rotated copies."""
        rows: list[tuple[Tensor, ...]] = []
        generator = torch.Generator().manual_seed(0)
        projection = None
        for seed in seeds:
            copies, angles = rotated(split, seed)
            copies = model.with_features(copies) if getattr(model, "frozen", False) else copies
            for place in torch.arange(len(copies), device=copies.labels.device).split(BATCH):
                batch = copies.batch(place)
                output = model.encode(batch.images, coupling=True)
                poses = class_poses(output, batch.labels)
                features = batch.images if output.features is None else output.features
                flat = features.float().flatten(1)
                if projection is None:
                    shape = (flat.shape[1], poses.shape[1])
                    projection = torch.randn(shape, generator=generator).to(flat.device)
                rows.append((poses, flat @ projection, angles[place], batch.labels))
        *numbers, labels = (torch.cat(parts).cpu() for parts in zip(*rows, strict=True))
        return *(n.double() for n in numbers), labels
