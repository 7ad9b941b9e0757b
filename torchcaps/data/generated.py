"""Sets drawn from a base set of one-channel images: affnist-like, rotated, translated.

Sample n of a set depends on the seed and on n alone, so it is the same on every device, up to how
that rounds: a pixel in thousands may differ by one of 255. Validation and test images are drawn
once, on a GPU where there is one; training images are drawn afresh in every epoch, unless
`translated` is asked for one placement of each (`fresh=false`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from torchcaps.data.dataset import Batch, Dataset, Split
from torchcaps.data.registry import load, register
from torchcaps.errors import TorchcapsError
from torchcaps.functional import affine_matrix, draws, translate, warp

Draw = Callable[[Tensor, Tensor], tuple[Tensor, dict[str, Tensor]]]
"""(images [B,1,H,W] float, uniform draws [B,7]) -> (images, the pose of each by name)"""

_NUM_DRAWS = 7


@dataclass(frozen=True)
class _Fresh:
    """Draws training images when they are asked for."""

    draw: Draw
    seed: int

    def __call__(self, split: Split, rows: Tensor, number: Tensor) -> Batch:
        images = split.images[rows].float() / 255
        return Batch(self.draw(images, draws(self.seed, number, _NUM_DRAWS))[0], split.labels[rows])


@dataclass(frozen=True)
class _InOrder:
    """All shifts of a digit, then those of the next, through a buffer of `buffer` records: so the
    authors of `sparse` read them. Record n is any of the records n to n + buffer.
    """

    size: int
    max_shift: int
    seed: int
    buffer: int = 5000

    def __call__(self, split: Split, rows: Tensor, number: Tensor) -> Batch:
        side = 2 * self.max_shift + 1
        record = number + (draws(self.seed, number, 1)[:, 0] * self.buffer).long()
        rows, place = record // side**2 % len(split), record % side**2
        shift = torch.stack([place % side, place // side], 1) - self.max_shift
        images = split.images[rows].float() / 255
        return Batch(translate(images, shift, (self.size, self.size)), split.labels[rows])


def _fixed(split: Split, draw: Draw, seed: int, copies: int) -> Split:
    images, labels, factors = [], [], []
    device = "cuda" if torch.cuda.is_available() else "cpu"  # 320,000 images take a core minutes
    for number in torch.arange(len(split) * copies).split(8192):
        rows = number % len(split)
        base = split.images[rows].to(device).float() / 255
        drawn, pose = draw(base, draws(seed, number.to(device), _NUM_DRAWS))
        images.append((drawn * 255).round().to(torch.uint8).cpu())
        labels.append(split.labels[rows])
        factors.append({name: value.cpu() for name, value in pose.items()})
    joined = {name: torch.cat([pose[name] for pose in factors]) for name in factors[0]}
    return Split(torch.cat(images), torch.cat(labels), joined)


def grey_base(root: Path, base: str, seed: int) -> Dataset:
    """The base set of a generated one."""
    data = load(base, root, seed=seed)
    if data.render is not None or data.image_shape[0] != 1:
        raise TorchcapsError(
            f"{base!r} cannot be a base: it must be a plain set of one-channel images."
        )
    return data


def _generate(
    name: str, data: Dataset, seed: int, draw: Draw, copies: int = 1, fresh: bool = True
) -> Dataset:
    if copies < 1:
        raise TorchcapsError(f"{name}: copies={copies} leaves no image.")
    return Dataset(
        name,
        data.train if fresh else _fixed(data.train, draw, 3 * seed, 1),
        _fixed(data.val, draw, 3 * seed + 1, 1),
        _fixed(data.test, draw, 3 * seed + 2, copies),
        data.classes,
        f"drawn from {data.name}",
        _Fresh(draw, 3 * seed) if fresh else None,
    )


def ink_boxes(images: Tensor, least: float = 0.5 / 255) -> Tensor:
    """Where the ink of each image begins and ends. [B,C,H,W] -> [B,4]: left, top, right, bottom

    An image without ink has the box of its centre.
    """
    ink = images.amax(1) > least
    height, width = images.shape[2:]
    sides = []
    for line, extent in ((ink.any(1), width), (ink.any(2), height)):  # columns, rows
        place = torch.arange(extent, device=images.device)
        some, middle = line.any(1), (extent - 1) // 2
        first = torch.where(line, place, extent).amin(1)
        last = torch.where(line, place, -1).amax(1)
        sides.append((torch.where(some, first, middle), torch.where(some, last, middle)))
    (left, right), (top, bottom) = sides
    return torch.stack([left, top, right, bottom], 1)


def affnist_draw(size: int = 40, shift: float | None = None) -> Draw:
    """affNIST's transforms: 20 degrees, shear 0.2, scale 0.8 to 1.2 an axis, bilinear; then every
    place at which all ink stays on the canvas is equally likely, or (`shift`) within so many px.
    """

    def draw(images: Tensor, u: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        signed = 2 * u - 1
        degrees, shear = 20 * signed[:, 0], 0.2 * signed[:, 1]
        scale = 1 + 0.2 * signed[:, 2:4]
        if shift is None:
            still = affine_matrix(degrees, scale, shear, torch.zeros_like(scale))
            margin = max(0, (max(images.shape[2:]) * 7 // 4 - size + 1) // 2)
            boxes = ink_boxes(warp(images, still, size + 2 * margin)).to(u.dtype) - margin
            low, high = -boxes[:, :2], size - 1 - boxes[:, 2:]
            moved = torch.where(high > low, low + u[:, 4:6] * (high - low), (low + high) / 2)
        else:
            moved = shift * signed[:, 4:6]
        drawn = warp(images, affine_matrix(degrees, scale, shear, moved), size)
        return drawn, {
            "degrees": degrees,
            "shear": shear,
            "scale_x": scale[:, 0],
            "scale_y": scale[:, 1],
            "shift_x": moved[:, 0],
            "shift_y": moved[:, 1],
        }

    return draw


def rotated_draw(degrees: float, fixed: bool = False) -> Draw:
    def draw(images: Tensor, u: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        angle = torch.full_like(u[:, 0], degrees) if fixed else degrees * (2 * u[:, 0] - 1)
        ones, zeros = torch.ones_like(u[:, :2]), torch.zeros_like(u[:, :2])
        height, width = images.shape[2:]
        matrix = affine_matrix(angle, ones, zeros[:, 0], zeros)
        return warp(images, matrix, (height, width)), {"degrees": angle}

    return draw


def translated_draw(size: int, max_shift: int) -> Draw:
    def draw(images: Tensor, u: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        shift = (u[:, :2] * (2 * max_shift + 1)).floor().long() - max_shift
        return translate(images, shift, (size, size)), {
            "shift_x": shift[:, 0],
            "shift_y": shift[:, 1],
        }

    return draw


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
    """`copies` drawings of each test digit; the defaults are the original's.

    shift: fit: anywhere where all ink stays on the canvas; a number: within so many pixels
    """
    data = grey_base(root, base, seed)
    try:
        largest = None if shift == "fit" else float(shift)
    except ValueError:
        raise TorchcapsError(f"affnist-like: shift={shift!r} is neither fit nor pixels.") from None
    return _generate(f"affnist-like:{base}", data, seed, affnist_draw(size, largest), copies)


@register("rotated", "a base turned at random: rotated:mnist,degrees=45[,fixed=true]")
def rotated(
    root: Path, base: str = "mnist", *, seed: int, degrees: float = 45, fixed: bool = False
) -> Dataset:
    """Uniform in [-degrees, degrees], counter-clockwise as seen; or each by exactly `degrees`."""
    data = grey_base(root, base, seed)
    return _generate(f"rotated:{base}", data, seed, rotated_draw(degrees, fixed))


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
    """Every position at which the whole image stays on the canvas is equally likely.

    fresh: placed anew in every epoch; otherwise each training image has one place for all of them.
    order: shuffled; authors: all shifts of a digit nearly together, as the code of `sparse` reads
    """
    if order not in ("shuffled", "authors"):
        raise TorchcapsError(f"translated: order={order!r} is neither shuffled nor authors.")
    data = grey_base(root, base, seed)
    side = max(data.image_shape[1:])
    if size < side:
        raise TorchcapsError(f"translated: size={size} is smaller than the images ({side}).")
    largest = (size - side) // 2
    draw = translated_draw(size, largest)
    made = _generate(f"translated:{base}", data, seed, draw, fresh=fresh)
    if order == "authors":
        return replace(made, render=_InOrder(size, largest, 3 * seed), shuffled=False)
    return made


@register("centred", "a base in the middle of 40x40: centred:mnist[,size=40]")
def centred(root: Path, base: str = "mnist", *, seed: int, size: int = 40) -> Dataset:
    """The images as they are, on a larger canvas."""
    data = grey_base(root, base, seed)
    if size < max(data.image_shape[1:]):
        raise TorchcapsError(f"centred: size={size} is smaller than the images.")
    return _generate(f"centred:{base}", data, seed, translated_draw(size, 0), fresh=False)
