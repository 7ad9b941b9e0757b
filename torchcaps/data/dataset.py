"""Data sets: uint8 tensors that fit on the device, in three splits."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from torchcaps.data.stream import prefetch, together
from torchcaps.data.value_range import Range
from torchcaps.errors import TorchcapsError, some_of
from torchcaps.functional import counter_uniform


@dataclass
class Batch:
    """A training or evaluation batch. (Not frozen: Lightning converts its tensors in place.)

    images [B,C,H,W] float in [0,1]; labels [B], or [B,2] with overlapping objects (-1: no label);
    targets [B,2,C,H,W] float: image of each overlapping object. For CutMix: pasted [B], the label
    of the pasted rectangle, and kept [B] float, the share of the image outside it. turn, rotation
    [B]: angles in radians by which the object is turned before the camera, and the image in its
    plane.

    >>> batch = Batch(torch.rand(4, 1, 8, 8), torch.arange(4))
    >>> len(batch[:2])
    2
    """

    images: Tensor
    labels: Tensor
    targets: Tensor | None = None
    pasted: Tensor | None = None
    kept: Tensor | None = None
    turn: Tensor | None = None
    rotation: Tensor | None = None

    def __len__(self) -> int:
        return len(self.images)

    def tensors(self) -> "tuple[Tensor | None, ...]":
        labels = self.images, self.labels, self.targets, self.pasted, self.kept
        return *labels, self.turn, self.rotation

    def __getitem__(self, rows: slice) -> "Batch":
        optional = (None if t is None else t[rows] for t in self.tensors()[2:])
        return Batch(self.images[rows], self.labels[rows], *optional)


@dataclass(frozen=True)
class Split:
    """Images [N,C,H,W] uint8, labels [N] or [N,2] (-1: no label), and factors of variation [N].

    Feature maps of a frozen backbone, float16 [N,C,H,W], can stand in for the images.

    For images that do not fit in memory `StoredImages` stands in for the tensor; `batch` reads and
    decodes them.

    >>> split = Split(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.arange(4))
    >>> split
    Split(4 images of 1x8x8 on cpu)
    """

    images: Tensor
    labels: Tensor
    factors: dict[str, Tensor] = field(default_factory=dict)
    targets: Tensor | None = None

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.images.shape[1:]))
        return f"Split({len(self):,} images of {shape} on {self.images.device})"

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, rows: Tensor | slice) -> "Split":
        targets = None if self.targets is None else self.targets[rows]
        factors = {name: values[rows] for name, values in self.factors.items()}
        return Split(self.images[rows], self.labels[rows], factors, targets)

    def to(self, device: torch.device | str) -> "Split":
        targets = None if self.targets is None else self.targets.to(device)
        factors = {name: values.to(device) for name, values in self.factors.items()}
        return Split(self.images.to(device), self.labels.to(device), factors, targets)

    def batch(self, rows: Tensor | slice) -> Batch:
        subset = self[rows]
        targets = None if subset.targets is None else subset.targets.float() / 255
        maps = subset.images.dtype == torch.float16
        images = subset.images.float() if maps else subset.images / 255
        angles = {name: subset.factors.get(name) for name in ("turn", "rotation")}
        return Batch(images, subset.labels, targets, **angles)

    def batches(self, size: int) -> Iterator[Batch]:
        """Iterate over the split in order; the last batch may be smaller."""
        if size < 1:
            raise TorchcapsError(f"batch_size={size}: it must be at least 1.")
        for start in range(0, len(self), size):
            for ahead in (start, start + size):
                prefetch(self.images, slice(ahead, ahead + size))
            yield self.batch(slice(start, start + size))


def joined(one: Split, two: Split) -> Split:
    """Concatenate two splits."""
    factors = {name: torch.cat([one.factors[name], two.factors[name]]) for name in one.factors}
    targets = None
    if one.targets is not None and two.targets is not None:
        targets = torch.cat([one.targets, two.targets])
    images, labels = together(one.images, two.images), torch.cat([one.labels, two.labels])
    return Split(images, labels, factors, targets)


Render = Callable[[Split, Tensor, Tensor], Batch]
"""(base split, rows [B], sample numbers [B]) -> Batch of a generated set"""


@dataclass(frozen=True)
class Dataset:
    """Three splits, class names, and how training samples are generated.

    Generated sets have `render`: their train split holds the base images, from which it renders
    training samples on demand, `copies` samples per image and epoch. `shuffled=False` keeps the
    samples in order, for a `render` that shuffles.

    >>> digits = torchcaps.data.load("digits")
    >>> digits.image_shape, digits.num_classes
    ((1, 28, 28), 10)
    """

    name: str
    train: Split
    val: Split
    test: Split
    classes: tuple[str, ...]
    note: str = ""
    render: Render | None = None
    copies: int = 1
    shuffled: bool = True
    files: str = ""
    """The sha256 of the names, classes and splits of a folder's images, which determine the splits,
    or of images and labels in memory; empty for other data sets."""
    storage: str = ""
    """Place of the images, if their size decided it: in memory or on disk."""
    value_range: Range | None = None
    """Values of images with more than 8 bits that became 0 and 255; None without such images."""
    unsplit: bool = False
    """All images came without splits; validation and test were held out here."""
    paths: tuple[str, ...] = ()
    """Files of a folder's images, relative to it; the factor `file` of a split numbers them."""

    def __repr__(self) -> str:
        splits = (f"{name}={getattr(self, name)}" for name in ("train", "val", "test"))
        return f"Dataset({self.name!r}, {self.num_classes} classes, {', '.join(splits)})"

    def file_of(self, number: int) -> str:
        """The file with this number; empty for data that is not from files."""
        return self.paths[number] if 0 <= number < len(self.paths) else ""

    def training(self, rows: Tensor, number: Tensor) -> Batch:
        """Training images before augmentation; generated images depend on the sample numbers."""
        return self.render(self.train, rows, number) if self.render else self.train.batch(rows)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        channels, height, width = self.val.images.shape[1:]
        return channels, height, width

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def to(self, device: torch.device | str) -> "Dataset":
        return replace(
            self, train=self.train.to(device), val=self.val.to(device), test=self.test.to(device)
        )


def named_as(data: Dataset, names: tuple[str, ...]) -> Dataset:
    """Renumber the labels by the positions of the classes in `names`; unknown classes raise."""
    if data.classes == names:
        return data
    unknown = [name for name in data.classes if name not in names]
    if unknown:
        raise TorchcapsError(
            f"{data.name} has classes that the model does not know: {some_of(unknown)}. The "
            f"model's classes: {some_of(names)}."
        )
    number = torch.tensor([*(names.index(name) for name in data.classes), -1])  # -1 stays -1
    splits = {
        name: replace(split, labels=number.to(split.labels.device)[split.labels])
        for name, split in (("train", data.train), ("val", data.val), ("test", data.test))
    }
    return replace(data, **splits, classes=names)


def class_warnings(data: Dataset) -> list[str]:
    """Classes that the splits do not cover, by name: one sentence for each kind."""
    if data.train.labels.ndim != 1 or not data.num_classes:
        return []
    train, val, test = (
        torch.bincount(split.labels[split.labels >= 0].cpu(), minlength=data.num_classes)
        for split in (data.train, data.val, data.test)
    )
    total = train + val + test
    numbers = data.classes == tuple(str(n) for n in range(data.num_classes))
    kinds = {
        "no images" + (" (number labels from 0 without gaps)" if numbers else ""): total == 0,
        "no training images": (train == 0) & (total > 0),
        "a single image": total == 1,
        "no test images": (test == 0) & (total > 0),
    }
    return [
        f"{data.name}: classes with {kind}: {some_of([data.classes[n] for n in rows])}."
        for kind, mask in kinds.items()
        if (rows := mask.nonzero()[:, 0].tolist())
    ]


def whole(data: Dataset) -> Split:
    """All images of a data set, from all splits."""
    if data.render is not None:
        raise TorchcapsError(f"{data.name} generates its training images; evaluate on val or test.")
    return joined(joined(data.train, data.val), data.test)


def _by_class(labels: Tensor, seed: int) -> dict[int, Tensor]:
    """Rows of each label, shuffled by the seed. labels [N]"""
    order = counter_uniform(seed, torch.arange(len(labels)), 1)[:, 0].argsort(stable=True)
    return {label: order[labels[order] == label] for label in labels.unique().tolist()}


def hold_out(labels: Tensor, fraction: float = 0.1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows to keep and rows to hold out: the same fraction of every class, determined by the seed.

    labels [N], or [N,M] whose first one counts -> kept rows, held-out rows, both in ascending order

    >>> kept, held = hold_out(torch.arange(20) % 2, 0.1, seed=0)
    >>> len(kept), len(held)
    (18, 2)
    """
    labels = labels if labels.ndim == 1 else labels[:, 0]
    held = [rows[: round(fraction * len(rows))] for rows in _by_class(labels, seed).values()]
    mask = torch.zeros(len(labels), dtype=torch.bool)
    mask[torch.cat(held)] = True
    return (~mask).nonzero()[:, 0], mask.nonzero()[:, 0]


def with_validation(
    name: str, train: Split, test: Split, classes: tuple[str, ...], *, seed: int, note: str = ""
) -> Dataset:
    """Make a data set that has no validation split: hold out a tenth of train."""
    if len(train) < 2 or len(test) < 1:
        raise TorchcapsError(
            f"{name}: {len(train)} training and {len(test)} test images are too few. Give at least "
            "2 and 1."
        )
    kept, held = hold_out(train.labels, seed=seed)
    if not len(held):  # fewer than five images in every class
        kept, held = kept[:-1], kept[-1:]
    return Dataset(name, train[kept], train[held], test, classes, note)


def hold_fewer(data: Dataset, count: int) -> Dataset:
    """Reduce the validation split to `count` images and train on the others."""
    if data.render is not None:
        raise TorchcapsError(
            f"{data.name} generates its images, so its validation split stays as is."
        )
    if not 0 < count <= len(data.val):
        raise TorchcapsError(
            f"data.held_out={count} is more than the {len(data.val)} validation images of "
            f"{data.name}: --data.held-out 0 keeps all."
        )
    held = torch.zeros(len(data.val), dtype=torch.bool)
    held[torch.linspace(0, len(data.val) - 1, count).round().long()] = True  # of every class
    return replace(data, train=joined(data.train, data.val[~held]), val=data.val[held])


def keep_per_class(data: Dataset, count: int, seed: int = 0) -> Dataset:
    """Keep `count` training images per class; validation and test stay unchanged."""
    labels = data.train.labels
    if labels.ndim != 1 or not data.num_classes:
        raise TorchcapsError(
            f"{data.name} has no single label per image: {count} per class cannot be selected."
        )
    rows = _by_class(labels, seed)
    fewest = min(len(rows.get(label, ())) for label in range(data.num_classes))
    if not 0 < count <= fewest:
        raise TorchcapsError(
            f"{data.name} has {fewest} training images of its smallest class; got {count}."
        )
    kept = torch.cat([rows[label][:count] for label in range(data.num_classes)]).sort().values
    return replace(data, train=data.train[kept])
