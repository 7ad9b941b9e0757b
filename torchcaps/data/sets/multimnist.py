"""MultiMNIST and DiverseMultiMNIST: two overlapping digits of different classes, 36x36.

Training images are generated on demand: sample n depends on (seed, n), the same in every epoch.
Train and test use disjoint digits.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from torchcaps.data.dataset import Batch, Dataset, Split
from torchcaps.data.registry import register
from torchcaps.data.sets.generated import gray_base
from torchcaps.errors import TorchcapsError
from torchcaps.functional import counter_uniform, translate

_SIZE, _SHIFT = 36, 4


@dataclass(frozen=True)
class Overlay:
    """Renders two digits of different classes: their sum, clipped at white.

    `single` is the share of samples that keep one digit; their second label is -1.
    """

    members: Tensor
    """Rows of the split, sorted by class."""
    first: Tensor
    count: Tensor
    seed: int
    period: int
    """Samples in an epoch; later epochs repeat them."""
    single: float = 0.0
    reach: int = _SHIFT
    """Largest shift of a digit in pixels."""

    @staticmethod
    def of(split: Split, num_classes: int, seed: int, copies: int, **options) -> "Overlay":
        count = torch.bincount(split.labels, minlength=num_classes)
        if (count == 0).any():
            raise TorchcapsError("Overlapping digits need images of every class in every split.")
        first = count.cumsum(0) - count
        members = split.labels.argsort(stable=True)
        return Overlay(members, first, count, seed, len(split) * copies, **options)

    def __call__(self, split: Split, rows: Tensor, number: Tensor) -> Batch:
        u = counter_uniform(self.seed, number % self.period, 7)
        members, first, count = (t.to(rows.device) for t in (self.members, self.first, self.count))
        labels = split.labels[rows]
        other = (labels + 1 + (u[:, 0] * (len(count) - 1)).long()) % len(count)
        partner = members[first[other] + (u[:, 1] * count[other]).long()]
        shift = (u[:, 2:6] * (2 * self.reach + 1)).long() - self.reach
        digits = torch.stack([
            translate(split.images[r].float() / 255, s, (_SIZE, _SIZE))
            for r, s in ((rows, shift[:, :2]), (partner, shift[:, 2:]))
        ], 1)  # fmt: skip
        alone = u[:, 6] < self.single
        other = torch.where(alone, -1, other)
        second = digits[:, 1] * ~alone[:, None, None, None]
        digits = torch.stack([digits[:, 0], second], 1)
        return Batch(digits.sum(1).clamp(max=1), torch.stack([labels, other], 1), digits)


def _fixed(split: Split, overlay: Overlay) -> Split:
    """Render one epoch of a split."""
    batches = [overlay(split, n % len(split), n) for n in torch.arange(overlay.period).split(8192)]

    def as_bytes(x: Tensor) -> Tensor:
        return (x * 255).round().to(torch.uint8)

    targets = [as_bytes(b.targets) for b in batches if b.targets is not None]
    images, labels = [as_bytes(b.images) for b in batches], [b.labels for b in batches]
    return Split(torch.cat(images), torch.cat(labels), targets=torch.cat(targets))


def _overlapping(name: str, root: Path, base: str, seed: int, copies: int, **options) -> Dataset:
    if copies < 1:
        raise TorchcapsError(f"{name}: copies={copies} leaves no images. Give at least 1.")
    data = gray_base(root, base, seed)
    if max(data.image_shape[1:]) > _SIZE:
        raise TorchcapsError(f"{name}: {base!r} has images larger than {_SIZE} pixels.")
    overlays = [
        Overlay.of(split, data.num_classes, 3 * seed + i, n, **options)
        for i, (split, n) in enumerate(((data.train, copies), (data.val, 1), (data.test, 1)))
    ]
    val, test = _fixed(data.val, overlays[1]), _fixed(data.test, overlays[2])
    note = f"drawn from {data.name}"
    return Dataset(
        f"{name}:{base}", data.train, val, test, data.classes, note, overlays[0], copies,
        value_range=data.value_range,
    )  # fmt: skip


@register("multimnist", "two overlapping digits, 36x36, a stream: multimnist:mnist[,copies=100]")
def multimnist(
    root: Path, base: str = "mnist", *, seed: int, copies: int = 100, shift: int = _SHIFT
) -> Dataset:
    """copies: samples per training digit; 100 for MNIST's 54,000 are 5.4 million. shift: 4 in the
    papers' texts, 6 in Sabour's code, where digits may touch the border.
    """
    if not 0 <= shift <= 8:
        raise TorchcapsError(f"multimnist: shift={shift} is not between 0 and 8.")
    return _overlapping("multimnist", root, base, seed, copies, reach=shift)


@register("diverse-multimnist", "two overlapping digits or (1 in 6) one, 36x36, a stream")
def diverse_multimnist(root: Path, base: str = "mnist", *, seed: int, copies: int = 100) -> Dataset:
    return _overlapping("diverse-multimnist", root, base, seed, copies, single=1 / 6)
