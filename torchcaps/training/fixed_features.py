"""The features of a frozen backbone in place of images, computed once before the first step."""

from dataclasses import replace

import torch
from torch import Tensor

from torchcaps.data import Augment, Dataset, Split
from torchcaps.data.dataset import joined
from torchcaps.errors import TorchcapsError
from torchcaps.models import Model
from torchcaps.training.recipe import DataSpec

BATCH = 64


def fixed_features(model: Model, data: Dataset, spec: DataSpec) -> tuple[Dataset, tuple[str, ...]]:
    """A data set with feature maps in place of images, and the augmentation that is left.

    For a frozen backbone, unless its images change in every step. With `copies` the training split
    also has the maps of augmented copies of each image.
    """
    if not model.frozen or data.render is not None or (spec.augment and not spec.copies):
        if spec.copies:
            raise TorchcapsError(
                "data.copies is for a model with a frozen backbone on images that are not "
                "generated: leave it out."
            )
        return data, spec.augment
    if spec.copies and not spec.augment:
        raise TorchcapsError("data.copies are augmented: add --data.augment rotate:180 or flip.")
    train, count = model.with_features(data.train), len(data.train)
    change = Augment(spec.augment)
    if spec.copies:
        train = _rotated_by(train, torch.zeros(count, device=data.train.labels.device))
    for copy in range(1, spec.copies + 1):
        numbers = torch.arange(count, device=data.train.labels.device) + copy * count
        images = torch.empty(data.train.images.shape, dtype=torch.uint8)
        rotation = torch.zeros(count, device=data.train.labels.device)
        for start in range(0, count, BATCH):
            rows = slice(start, min(start + BATCH, count))
            batch = change(data.train.batch(rows), spec.seed, numbers[rows])
            images[rows] = (batch.images * 255).round().byte().cpu()
            rotation[rows] = 0 if batch.rotation is None else batch.rotation
        copied = replace(data.train, images=images.to(data.train.images.device))
        copied = _rotated_by(copied, rotation)
        train = joined(train, model.with_features(copied))
    val, test = model.with_features(data.val), model.with_features(data.test)
    return replace(data, train=train, val=val, test=test), ()


def _rotated_by(split: Split, rotation: Tensor) -> Split:
    """The split with the in-plane angles of its images in radians. rotation [N]"""
    return replace(split, factors={**split.factors, "rotation": rotation})
