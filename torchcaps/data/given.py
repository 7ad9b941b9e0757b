"""Data that stands in Python already: arrays, a torch Dataset, any iterable of (image, label)."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchcaps.data.dataset import Dataset, Split, hold_out, with_validation
from torchcaps.data.registry import register
from torchcaps.errors import TorchcapsError


def as_dataset(
    source: Any,
    *,
    test: Any = None,
    classes: Sequence[str] = (),
    seed: int = 0,
    name: str = "given",
) -> Dataset:
    """A data set of (images, labels), of a torch Dataset, or of an iterable of (image, label).

    Images are arrays, tensors or Pillow's, [H,W], [H,W,C] or [C,H,W], of one size: uint8, or float
    from 0 to 1. Labels are numbers from 0, or names. test: the same again; None: a tenth is held
    out. classes: names of the classes, where labels are numbers
    """
    if isinstance(source, Dataset):
        return source
    images, labels, names = _read(source, tuple(classes))
    if test is not None:
        others, their_labels, _ = _read(test, names)
        return with_validation(
            name, Split(images, labels), Split(others, their_labels), names, seed=seed
        )
    kept, held = hold_out(labels, 0.1, seed)
    if not len(held):
        kept, held = hold_out(torch.zeros_like(labels), 0.1, seed)
    whole = Split(images, labels)
    return with_validation(name, whole[kept], whole[held], names, seed=seed + 1)


def _read(source: Any, classes: tuple[str, ...]) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    if isinstance(source, tuple) and len(source) == 2 and hasattr(source[0], "shape"):
        images, labels = source
        images = _batch(torch.as_tensor(np.asarray(images)) if not _tensor(images) else images)
    else:
        if not isinstance(source, Iterable) and not hasattr(source, "__getitem__"):
            raise TorchcapsError("Give (images, labels), or an iterable of (image, label).")
        pairs = _pairs(source)
        images = _stacked([_image(image) for image, _ in pairs])
        labels = [label for _, label in pairs]
    if not len(images):
        raise TorchcapsError("There are no images in what was given.")
    numbers, names = _labels(labels, classes)
    if len(numbers) != len(images):
        raise TorchcapsError(f"There are {len(images)} images and {len(numbers)} labels.")
    return images, numbers, names


def _tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _pairs(source: Any) -> list[tuple[Any, ...]]:
    length = len(source) if hasattr(source, "__len__") else None
    # a torch Dataset says how long it is and raises no IndexError at its end
    found = (source[n] for n in range(length)) if length is not None else iter(source)
    pairs = [tuple(pair) if isinstance(pair, Sequence) else () for pair in found]
    if not pairs or any(len(pair) != 2 for pair in pairs):
        raise TorchcapsError("Give (images, labels), or an iterable of (image, label).")
    return pairs


def _image(value: Any) -> Tensor:
    """One image as uint8 [C,H,W]."""
    tensor = value if _tensor(value) else torch.as_tensor(np.asarray(value).copy())
    if tensor.ndim not in (2, 3):
        raise TorchcapsError(f"An image of shape {tuple(tensor.shape)}: give [H,W] or [H,W,C].")
    return _batch(tensor[None])[0]


def _stacked(images: list[Tensor]) -> Tensor:
    shapes = {tuple(image.shape) for image in images}
    if len(shapes) > 1:
        raise TorchcapsError(f"Images of several shapes, {sorted(shapes)[:2]}: scale them first.")
    return torch.stack(images)


def _batch(images: Tensor) -> Tensor:
    """Any of the usual layouts as uint8 [N,C,H,W]."""
    if images.ndim == 3:
        images = images[:, None]
    if images.ndim != 4:
        raise TorchcapsError(f"Images of shape {tuple(images.shape)}: give [N,H,W] or [N,H,W,C].")
    if images.shape[1] not in (1, 3) and images.shape[-1] in (1, 3):
        images = images.movedim(-1, 1)
    if images.dtype == torch.uint8:
        return images.contiguous()
    if not images.is_floating_point():
        raise TorchcapsError(f"Images of {images.dtype}: give uint8, or float from 0 to 1.")
    low, high = float(images.min()), float(images.max())
    if not 0 <= low <= high <= 1:
        raise TorchcapsError(f"Images from {low:g} to {high:g}: give uint8, or float from 0 to 1.")
    return (images * 255).round().to(torch.uint8).contiguous()


def _labels(labels: Any, classes: tuple[str, ...]) -> tuple[Tensor, tuple[str, ...]]:
    """Numbers of classes, and their names."""
    values = labels.tolist() if hasattr(labels, "tolist") else list(labels)
    values = [v.item() if hasattr(v, "item") else v for v in values]
    if all(isinstance(v, str) for v in values):
        names = classes or tuple(sorted(set(values)))
        unknown = sorted(set(values) - set(names))
        if unknown:
            raise TorchcapsError(f"Labels {', '.join(unknown[:10])} are none of the classes.")
        place = {name: n for n, name in enumerate(names)}
        return torch.tensor([place[v] for v in values]), names
    if not all(isinstance(v, int) and v >= 0 for v in values):
        raise TorchcapsError("Labels are whole numbers from 0, or names.")
    names = classes or tuple(str(n) for n in range(max(values) + 1))
    if max(values) >= len(names):
        raise TorchcapsError(f"The label {max(values)} is beyond the {len(names)} classes.")
    return torch.tensor(values), names


@register("given", "data that was handed over in Python: fit(recipe, data=…)")
def given(root: Path, *, seed: int) -> Dataset:
    """No name brings it back."""
    del root, seed
    raise TorchcapsError("This data was given in Python and is not here: hand it over again.")
