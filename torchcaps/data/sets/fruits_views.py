"""80 fruits and vegetables turned about two axes, photographs of Fruits-360 (Oltean, Muresan).

    ROOT/fruits-views/{axis1,axis3}/CLASS/FRAME.jpg   put there by the user

`fruits_views.txt` has the splits: training and validation are the first half of a turn about axis
1 (validation its last view, the one nearest to the other half). `half` tests on the other half of
that turn, `axis` on the whole turn about axis 3.

`classes=seen` leaves every fourth fruit out, in all splits, and `classes=unseen` is those left out.
"""

import math
from importlib.resources import files
from pathlib import Path

import torch

from torchcaps.data.augment import Rotate
from torchcaps.data.dataset import Dataset, Split
from torchcaps.data.images import as_size, read_images
from torchcaps.data.registry import register
from torchcaps.errors import TorchcapsError, UsageError
from torchcaps.functional import counter_uniform

TESTS = ("half", "axis")
TURN = 328
"""Frames of a whole turn: all films have one speed, and those of half the length show less."""
EVERY = 4
"""One class of so many is unseen."""


def splits() -> dict[str, list[str]]:
    """Files of each split, relative to the folder, as AXIS/CLASS/FRAME.jpg."""
    text = files("torchcaps.data.sets").joinpath("fruits_views.txt").read_text(encoding="utf-8")
    listed: dict[str, list[str]] = {}
    for line in text.splitlines():
        split, folder, frames = line.split("\t")
        listed.setdefault(split, []).extend(f"{folder}/{frame}.jpg" for frame in frames.split())
    return listed


@register(
    "fruits-views",
    "80 fruits from viewpoints that training never saw: fruits-views[:half|axis][,size=224]"
    "[,mode=L][,rotated=180][,classes=seen|unseen]",
)
def fruits_views(
    root: Path,
    test: str = "half",
    *,
    seed: int,
    size: str = "64",
    mode: str = "RGB",
    rotated: int = 0,
    classes: str = "all",
) -> Dataset:
    """test: half, the other half of the training turn, or axis, a turn about another axis

    rotated: each photograph is turned in the image plane by its own angle up to so many degrees
    classes: seen or unseen, for three quarters of the fruits or the rest
    """
    del seed
    if test not in TESTS:
        raise UsageError(f"fruits-views:{test}: give half or axis.")
    if classes not in ("all", "seen", "unseen"):
        raise UsageError(f"fruits-views: classes={classes}: give all, seen or unseen.")
    folder, listed = root / "fruits-views", splits()
    fruits = sorted({name.split("/")[1] for name in listed["train"]})
    if classes != "all":
        unseen = classes == "unseen"
        fruits = [f for n, f in enumerate(fruits) if (n % EVERY == EVERY - 1) == unseen]
        listed = {s: [f for f in files if f.split("/")[1] in fruits] for s, files in listed.items()}
    names = [name for split in ("train", "val", test) for name in listed[split]]
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise TorchcapsError(
            f"{folder}: {len(missing):,} of {len(names):,} files are missing, the first is "
            f"{missing[0]}.\nPut frames of Fruits-360 there as AXIS/CLASS/FRAME.jpg; the list is "
            "torchcaps/data/sets/fruits_views.txt."
        )
    pictures = read_images([folder / name for name in names], as_size(size), mode)
    labels = torch.tensor([fruits.index(name.split("/")[1]) for name in names])
    frames = torch.tensor([int(Path(name).stem) for name in names])
    images = _rotated(pictures.images, rotated) if rotated else pictures.images
    factors = {"frame": frames, "turn": 2 * math.pi / TURN * frames}
    whole = Split(images, labels, {**factors, "file": torch.arange(len(names))})
    sizes = [len(listed[split]) for split in ("train", "val", test)]
    train, val, tested = (whole[rows] for rows in torch.arange(len(names)).split(sizes))
    note = "photographs of Fruits-360, MIT license"
    return Dataset(
        f"fruits-views:{test}", train, val, tested, tuple(fruits), note, paths=tuple(names)
    )


def _rotated(images: torch.Tensor, degrees: int) -> torch.Tensor:
    """Photographs turned by angles that only depend on their place in the list. uint8 [N,C,H,W]"""
    turn, parts = Rotate(degrees), []
    for rows in torch.arange(len(images)).split(64):
        u = counter_uniform(0, rows, turn.num_uniforms)
        pixels = images[rows] / 255
        parts.append((turn.apply(pixels, turn.sample(u, pixels)) * 255).round().byte())
    return torch.cat(parts)
