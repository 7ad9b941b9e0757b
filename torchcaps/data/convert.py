"""Data from Python as a data set: arrays, torch Datasets, DataLoaders, Hugging Face datasets."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchcaps.data.dataset import Dataset, Split, hold_out, with_validation
from torchcaps.data.images import is_deep
from torchcaps.data.registry import register
from torchcaps.data.source import sha256
from torchcaps.data.value_range import Range, Values, as_text, default_range, exceeds, to_bytes
from torchcaps.errors import TorchcapsError

TAKES = (
    "data: give (images, labels), images alone, a dict of splits, an .npz file with `images` and "
    "`labels`, a torch Dataset or DataLoader, a Hugging Face dataset, or an iterable of "
    "(image, label)."
)
SPLITS = {"train": "train", "val": "val", "validation": "val", "valid": "val", "test": "test"}
"""Names of splits in a dict, and what they are here."""


def as_dataset(
    source: Any,
    *,
    test: Any = None,
    classes: Sequence[str] = (),
    value_range: Range | None = None,
    seed: int = 0,
    name: str = "memory",
) -> Dataset:
    """A data set of images and labels in memory.

    source: (images, labels); a dict of splits, {"train": …, "test": …}, with "val" if there is one;
    an .npz file or its contents; a torch Dataset or DataLoader; a Hugging Face Dataset or
    DatasetDict; or an iterable of (image, label)

    Images are arrays, tensors or Pillow images, [H,W], [H,W,C] or [C,H,W], of one size: uint8,
    float from 0 to 1, or other values in `value_range`. Labels are numbers from 0, or names.
    test: the test split, in any of these forms; None: a tenth is held out. classes: names of the
    classes, if labels are numbers. value_range: the values of integers and floats that become 0 and
    255; default: the smallest of 8, 10, 12, 14, 16 bits that holds the training maximum, or 0 to 1

    >>> images, labels = torch.rand(20, 1, 8, 8), torch.arange(20) % 2
    >>> as_dataset((images, labels), classes=("a", "b")).classes
    ('a', 'b')
    """
    if isinstance(source, Dataset):
        return source
    splits = _splits(source)
    if test is not None:
        splits["test"] = test
    classes = tuple(classes) or _class_names(splits["train"])
    read: dict[str, Split] = {}
    scale = _Scale(value_range)
    for split in ("train", "val", "test"):
        if split in splits:
            images, labels, classes = _read(splits[split], classes, scale)
            read[split] = Split(images, labels)
    sizes = {tuple(part.images.shape[1:]) for part in read.values()}
    if len(sizes) > 1:
        raise TorchcapsError(f"data: splits with images of several sizes, {sorted(sizes)}.")
    train = read["train"]
    unsplit = set(read) == {"train"}
    if "test" not in read:
        kept, held = hold_out(train.labels)  # the same test images for every seed
        if not len(held):
            kept, held = hold_out(torch.zeros_like(train.labels))
        train, read["test"] = train[kept], train[held]
        seed += 1
    if "val" in read:
        data = Dataset(name, train, read["val"], read["test"], classes)
    else:
        data = with_validation(name, train, read["test"], classes, seed=seed)
    content = [t for part in read.values() for t in (part.images, part.labels)]
    return replace(
        data,
        note=scale.note,
        value_range=scale.used,
        unsplit=unsplit,
        files=sha256(b"".join(hashlib.sha256(t.numpy().data).digest() for t in content)),
    )


@dataclass
class _Scale:
    """The range of images that are not uint8: one for all splits, decided by the first."""

    value_range: Range | None
    used: Range | None = None
    clipped: bool = False

    def to_bytes(self, images: Tensor) -> Tensor:
        if images.dtype == torch.uint8 or not images.numel():
            return images.to(torch.uint8)
        if images.dtype == torch.bool or images.is_complex():
            raise TorchcapsError(
                f"data: images of {images.dtype}; give uint8, float from 0 to 1, or integers."
            )
        whole = not images.is_floating_point()
        values = Values(float(images.min()), float(images.max()), whole)
        if not np.isfinite(values.low + values.high):
            raise TorchcapsError("data: some values of the images are not finite.")
        chosen = self.value_range or default_range([values], "data", "value_range=(LO, HI)")
        if values.whole or self.value_range:
            self.value_range = self.used = chosen
        self.clipped |= exceeds(values, chosen)
        parts = (part.cpu().double().numpy() for part in images.split(1024))
        return torch.cat([torch.from_numpy(to_bytes(part, chosen)) for part in parts])

    @property
    def note(self) -> str:
        if self.used is None:
            return ""
        clipped = "; some images have values outside the range, clipped" * self.clipped
        return f"values {as_text(self.used)}{clipped}"


def _splits(source: Any) -> dict[str, Any]:
    """The splits of a source by name: `train`, and `val` and `test` if it has them."""
    if isinstance(source, str | Path) and Path(source).suffix == ".npz":
        try:
            with np.load(Path(source).expanduser(), allow_pickle=False) as arrays:
                source = dict(arrays)
        except (OSError, ValueError) as error:
            raise TorchcapsError(f"{source}: not a readable .npz file ({error}).") from None
    if hasattr(source, "files") and isinstance(source, Mapping):  # numpy's NpzFile
        source = dict(source)
    if isinstance(source, Mapping) and {"images", "labels"} <= set(source):
        return {"train": (source["images"], source["labels"])}
    if not isinstance(source, Mapping):
        return {"train": source}
    unknown = [name for name in source if name not in SPLITS]
    if unknown or "train" not in source:
        raise TorchcapsError(
            f"data: a dict with the keys {', '.join(map(repr, source))}; give 'train' and, if you "
            "have them, 'val' and 'test'; or the arrays 'images' and 'labels'."
        )
    return {SPLITS[name]: part for name, part in source.items()}


def _columns(source: Any) -> tuple[str, str] | None:
    """The image and the label column of a Hugging Face dataset; None for anything else."""
    features = getattr(source, "features", None)
    if not hasattr(source, "column_names") or not isinstance(features, Mapping):
        return None
    kinds = {name: type(feature).__name__ for name, feature in features.items()}
    images = [name for name, kind in kinds.items() if kind == "Image"]
    labels = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    labels = labels or [name for name in ("label", "labels", "fine_label") if name in kinds]
    if len(images) != 1 or not labels:
        raise TorchcapsError(
            f"data: the columns {', '.join(kinds)} are not one image and a label. Rename or remove "
            "columns, or give (images, labels)."
        )
    return images[0], labels[0]


def _class_names(source: Any) -> tuple[str, ...]:
    """The class names that a torchvision or Hugging Face dataset knows."""
    columns = _columns(source)
    if columns is not None:
        return tuple(getattr(source.features[columns[1]], "names", None) or ())
    dataset = getattr(source, "dataset", source)  # a DataLoader or a Subset has another inside
    names = getattr(dataset, "classes", ())
    return tuple(map(str, names)) if isinstance(names, list | tuple) else ()


def _read(
    source: Any, classes: tuple[str, ...], scale: _Scale
) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    if isinstance(source, tuple) and len(source) == 2 and hasattr(source[0], "shape"):
        images, labels = source
        images = scale.to_bytes(_batch(_tensor(images)))
    elif isinstance(source, Tensor | np.ndarray):
        images = scale.to_bytes(_batch(_tensor(source)))
        return images, torch.full((len(images),), -1), ()
    else:
        pairs = list(_pairs(source))
        if not pairs or any(len(pair) != 2 for pair in pairs):
            raise TorchcapsError(TAKES)
        images = scale.to_bytes(_stacked([_image(image, scale) for image, _ in pairs]))
        labels = [label for _, label in pairs]
    if not len(images):
        raise TorchcapsError("data: there are no images.")
    numbers, names = _labels(labels, classes)
    if len(numbers) != len(images):
        raise TorchcapsError(f"data: {len(images)} images and {len(numbers)} labels.")
    return images, numbers, names


def _pairs(source: Any) -> Iterable[tuple[Any, ...]]:
    """(image, label) pairs of a torch or Hugging Face dataset, a DataLoader or an iterable."""
    if columns := _columns(source):
        return ((row[columns[0]], row[columns[1]]) for row in source)
    if isinstance(source, torch.utils.data.DataLoader):
        inner = source.dataset
        if hasattr(inner, "__getitem__") and hasattr(inner, "__len__"):
            return _pairs(inner)  # in the order of the data set, whatever the loader's sampler
        return (pair for batch in source for pair in zip(*batch, strict=True))
    if not hasattr(source, "__iter__") and not hasattr(source, "__getitem__"):
        raise TorchcapsError(TAKES)
    if isinstance(source, str | bytes | Path):
        raise TorchcapsError(f"data={str(source)!r}: not a data set's name or an .npz file.")
    # a torch Dataset has a length and raises no IndexError at its end
    items = (source[n] for n in range(len(source))) if hasattr(source, "__len__") else iter(source)
    return (tuple(pair) if isinstance(pair, Sequence) else () for pair in items)


def _tensor(value: Any) -> Tensor:
    """An array, a tensor or a Pillow image as a tensor; unsigned integers of 16 bits as int32."""
    tensor = value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value).copy())
    return tensor.int() if tensor.dtype == torch.uint16 else tensor


def _image(value: Any, scale: _Scale) -> Tensor:
    """One image [C,H,W]: uint8, or integers whose range all images decide."""
    if hasattr(value, "getbands") and value.mode not in ("L", "RGB") and not is_deep(value):
        value = value.convert("L" if value.mode == "1" else "RGB")
    tensor = _tensor(value)
    if tensor.ndim not in (2, 3):
        raise TorchcapsError(f"data: an image of shape {tuple(tensor.shape)}; give [H,W,C].")
    image = _batch(tensor[None])[0]
    return scale.to_bytes(image) if image.is_floating_point() else image


def _stacked(images: list[Tensor]) -> Tensor:
    shapes = {tuple(image.shape) for image in images}
    if len(shapes) > 1:
        raise TorchcapsError(
            f"data: images of several shapes, {sorted(shapes)[:2]}; resize them first, or give a "
            "folder: data='folder:PATH,size=64'."
        )
    kinds = sorted({str(image.dtype).removeprefix("torch.") for image in images})
    if len(kinds) > 1:
        raise TorchcapsError(f"data: images of several types, {', '.join(kinds)}; give one type.")
    return torch.stack(images)


def _batch(images: Tensor) -> Tensor:
    """Any of the usual layouts as [N,C,H,W]."""
    if images.ndim == 3:
        images = images[:, None]
    if images.ndim != 4:
        raise TorchcapsError(f"data: images of shape {tuple(images.shape)}; give [N,H,W,C].")
    if images.shape[1] not in (1, 3) and images.shape[-1] in (1, 3):
        images = images.movedim(-1, 1)
    return images.contiguous()


def _labels(labels: Any, classes: tuple[str, ...]) -> tuple[Tensor, tuple[str, ...]]:
    """Class numbers, and the names of the classes."""
    values = labels.tolist() if hasattr(labels, "tolist") else list(labels)
    values = [v.item() if hasattr(v, "item") else v for v in values]
    if all(isinstance(v, str) for v in values):
        names = classes or tuple(sorted(set(values)))
        unknown = sorted(set(values) - set(names))
        if unknown:
            raise TorchcapsError(f"data: the labels {', '.join(unknown[:10])} are not in classes.")
        place = {name: n for n, name in enumerate(names)}
        return torch.tensor([place[v] for v in values]), names
    if not all(isinstance(v, int) and v >= 0 for v in values):
        raise TorchcapsError("data: labels are whole numbers from 0, or names.")
    names = classes or tuple(str(n) for n in range(max(values) + 1))
    if max(values) >= len(names):
        raise TorchcapsError(f"data: the label {max(values)}, but there are {len(names)} classes.")
    return torch.tensor(values), names


@register("memory", "data from Python: torchcaps.fit(model, data=…)")
def memory(root: Path, *, seed: int) -> Dataset:
    """No name brings it back."""
    del root, seed
    raise TorchcapsError("This data was in memory and is gone: pass it again as data=…")
