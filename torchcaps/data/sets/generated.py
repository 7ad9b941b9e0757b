"""Data sets generated from a base set of one-channel images: affnist-like, rotated, translated.

Sample n depends only on the seed and n, so it is the same on every device up to rounding: one pixel
in thousands may differ by 1/255. Validation and test images are generated once, on a GPU if there
is one; training images are generated anew in every epoch, unless `translated` has `fresh=false`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from torchcaps.data.dataset import Batch, Dataset, Split
from torchcaps.data.registry import load, register
from torchcaps.errors import TorchcapsError
from torchcaps.functional import affine_matrix, counter_uniform, translate, warp

Transformation = Callable[[Tensor, Tensor], tuple[Tensor, dict[str, Tensor]]]
"""(images [B,1,H,W] float, uniform numbers [B,7]) -> (images, factors of their poses by name)"""

_NUM_UNIFORMS = 7


@dataclass(frozen=True)
class _OnDemand:
    """Generates training images on demand."""

    transformation: Transformation
    seed: int

    def __call__(self, split: Split, rows: Tensor, number: Tensor) -> Batch:
        images = split.images[rows].float() / 255
        u = counter_uniform(self.seed, number, _NUM_UNIFORMS)
        return Batch(self.transformation(images, u)[0], split.labels[rows])


@dataclass(frozen=True)
class _InOrder:
    """All shifts of a digit, then of the next, through a shuffle buffer of `buffer` records, as in
    the code of `sparse`. Record n is any of the records n to n + buffer.
    """

    size: int
    max_shift: int
    seed: int
    buffer: int = 5000

    def __call__(self, split: Split, rows: Tensor, number: Tensor) -> Batch:
        side = 2 * self.max_shift + 1
        record = number + (counter_uniform(self.seed, number, 1)[:, 0] * self.buffer).long()
        rows, position = record // side**2 % len(split), record % side**2
        shift = torch.stack([position % side, position // side], 1) - self.max_shift
        images = split.images[rows].float() / 255
        return Batch(translate(images, shift, (self.size, self.size)), split.labels[rows])


def _fixed(split: Split, transformation: Transformation, seed: int, copies: int) -> Split:
    """Generate a split once."""
    images, labels, factors = [], [], []
    device = (
        "cuda" if torch.cuda.is_available() else "cpu"
    )  # 320,000 images take minutes on a CPU core
    for number in torch.arange(len(split) * copies).split(8192):
        rows = number % len(split)
        base = split.images[rows].to(device).float() / 255
        u = counter_uniform(seed, number.to(device), _NUM_UNIFORMS)
        transformed, pose = transformation(base, u)
        images.append((transformed * 255).round().to(torch.uint8).cpu())
        labels.append(split.labels[rows])
        factors.append({name: value.cpu() for name, value in pose.items()})
    joined = {name: torch.cat([pose[name] for pose in factors]) for name in factors[0]}
    return Split(torch.cat(images), torch.cat(labels), joined)


def gray_base(root: Path, base: str, seed: int) -> Dataset:
    """Load the base set of a generated set."""
    data = load(base, root, seed=seed)
    if data.render is not None or data.image_shape[0] != 1:
        raise TorchcapsError(
            f"{base!r} cannot be a base set. Give one-channel images that are not generated."
        )
    return data


def _generate(
    name: str,
    data: Dataset,
    seed: int,
    transformation: Transformation,
    copies: int = 1,
    fresh: bool = True,
) -> Dataset:
    if copies < 1:
        raise TorchcapsError(f"{name}: copies={copies} leaves no images. Give at least 1.")
    return Dataset(
        name,
        data.train if fresh else _fixed(data.train, transformation, 3 * seed, 1),
        _fixed(data.val, transformation, 3 * seed + 1, 1),
        _fixed(data.test, transformation, 3 * seed + 2, copies),
        data.classes,
        f"drawn from {data.name}",
        _OnDemand(transformation, 3 * seed) if fresh else None,
        value_range=data.value_range,
    )


def ink_boxes(images: Tensor, threshold: float = 0.5 / 255) -> Tensor:
    """Bounding box of the ink of each image. [B,C,H,W] -> [B,4]: left, top, right, bottom

    The box of an image without ink is its center.
    """
    ink = images.amax(1) > threshold
    height, width = images.shape[2:]
    sides = []
    for line, extent in ((ink.any(1), width), (ink.any(2), height)):  # columns, rows
        index = torch.arange(extent, device=images.device)
        has_ink, middle = line.any(1), (extent - 1) // 2
        first = torch.where(line, index, extent).amin(1)
        last = torch.where(line, index, -1).amax(1)
        sides.append((torch.where(has_ink, first, middle), torch.where(has_ink, last, middle)))
    (left, right), (top, bottom) = sides
    return torch.stack([left, top, right, bottom], 1)


def affnist_transformation(size: int = 40, shift: float | None = None) -> Transformation:
    """affNIST's transforms: 20 degrees, shear 0.2, scale 0.8 to 1.2 per axis, bilinear.

    shift: largest shift in pixels; None: uniform over all positions with all ink on the canvas
    """

    def transform(images: Tensor, u: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        signed = 2 * u - 1
        degrees, shear = 20 * signed[:, 0], 0.2 * signed[:, 1]
        scale = 1 + 0.2 * signed[:, 2:4]
        if shift is None:
            centered = affine_matrix(degrees, scale, shear, torch.zeros_like(scale))
            margin = max(0, (max(images.shape[2:]) * 7 // 4 - size + 1) // 2)
            boxes = ink_boxes(warp(images, centered, size + 2 * margin)).to(u.dtype) - margin
            low, high = -boxes[:, :2], size - 1 - boxes[:, 2:]
            offset = torch.where(high > low, low + u[:, 4:6] * (high - low), (low + high) / 2)
        else:
            offset = shift * signed[:, 4:6]
        return warp(images, affine_matrix(degrees, scale, shear, offset), size), {
            "degrees": degrees,
            "shear": shear,
            "scale_x": scale[:, 0],
            "scale_y": scale[:, 1],
            "shift_x": offset[:, 0],
            "shift_y": offset[:, 1],
        }

    return transform


def rotation(degrees: float, fixed: bool = False) -> Transformation:
    """Rotation by a random angle up to `degrees`, or by exactly `degrees`."""

    def transform(images: Tensor, u: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        angle = torch.full_like(u[:, 0], degrees) if fixed else degrees * (2 * u[:, 0] - 1)
        ones, zeros = torch.ones_like(u[:, :2]), torch.zeros_like(u[:, :2])
        height, width = images.shape[2:]
        matrix = affine_matrix(angle, ones, zeros[:, 0], zeros)
        return warp(images, matrix, (height, width)), {"degrees": angle}

    return transform


def translation(size: int, max_shift: int) -> Transformation:
    """Random shift by whole pixels on a canvas of side `size`."""

    def transform(images: Tensor, u: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        shift = (u[:, :2] * (2 * max_shift + 1)).floor().long() - max_shift
        return translate(images, shift, (size, size)), {
            "shift_x": shift[:, 0],
            "shift_y": shift[:, 1],
        }

    return transform


@register("affnist-like", "affNIST's transforms on a base: affnist-like:mnist[,copies=32,shift=8]")
def affnist_like(
    root: Path,
    base: str = "mnist",
    *,
    seed: int,
    copies: int = 32,
    size: int = 40,
    shift: str = "fit",
) -> Dataset:
    """Like affNIST, with the original's defaults.

    copies: samples per test digit. shift: fit, for positions with all ink on the canvas, or the
    largest shift in pixels
    """
    data = gray_base(root, base, seed)
    try:
        largest = None if shift == "fit" else float(shift)
    except ValueError:
        raise TorchcapsError(f"affnist-like: shift={shift!r} is neither fit nor pixels.") from None
    return _generate(
        f"affnist-like:{base}", data, seed, affnist_transformation(size, largest), copies
    )


@register("rotated", "a base, rotated at random: rotated:mnist,degrees=45[,fixed=true]")
def rotated(
    root: Path, base: str = "mnist", *, seed: int, degrees: float = 45, fixed: bool = False
) -> Dataset:
    """Rotate by an angle uniform in [-degrees, degrees], counter-clockwise; fixed: by `degrees`."""
    data = gray_base(root, base, seed)
    return _generate(f"rotated:{base}", data, seed, rotation(degrees, fixed))


@register("translated", "a base placed at random on 40x40: translated:mnist[,size=40,fresh=false]")
def translated(
    root: Path,
    base: str = "mnist",
    *,
    seed: int,
    size: int = 40,
    fresh: bool = True,
    order: str = "shuffled",
) -> Dataset:
    """Shift each image, uniform over all positions with the whole image on the canvas.

    fresh: shift training images anew in every epoch; otherwise their shifts are fixed. order:
    shuffled; or authors, all shifts of a digit nearly together, as in the code of `sparse`
    """
    if order not in ("shuffled", "authors"):
        raise TorchcapsError(f"translated: order={order!r} is neither shuffled nor authors.")
    data = gray_base(root, base, seed)
    side = max(data.image_shape[1:])
    if size < side:
        raise TorchcapsError(
            f"translated: size={size} is smaller than the images. Give at least {side}."
        )
    largest = (size - side) // 2
    transformation = translation(size, largest)
    generated = _generate(f"translated:{base}", data, seed, transformation, fresh=fresh)
    if order == "authors":
        return replace(generated, render=_InOrder(size, largest, 3 * seed), shuffled=False)
    return generated


@register("centred", "a base in the middle of 40x40: centred:mnist[,size=40]")
def centred(root: Path, base: str = "mnist", *, seed: int, size: int = 40) -> Dataset:
    """Center each image on a larger canvas."""
    data = gray_base(root, base, seed)
    side = max(data.image_shape[1:])
    if size < side:
        raise TorchcapsError(
            f"centred: size={size} is smaller than the images. Give at least {side}."
        )
    return _generate(f"centred:{base}", data, seed, translation(size, 0), fresh=False)
