"""smallNORB: 50 toys under 9 elevations, 18 azimuths and 6 lightings, stereo pairs 96x96.

Reads the six original `.mat` files (a NORB format, not MATLAB's) or `smallnorb.npz`, a copy with
JPEG compression whose training half has no pose labels.
"""

import struct
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps.data.dataset import Batch, Dataset, Split, hold_out, with_validation
from torchcaps.data.registry import register
from torchcaps.data.source import Remote, check_labels, fetch, find, missing, read_bytes, read_npz
from torchcaps.errors import TorchcapsError
from torchcaps.functional import counter_uniform, translate

CLASSES = ("animal", "human", "plane", "truck", "car")
_HOST = "https://cs.nyu.edu/~ylclab/data/norb-v1.0-small"
_TRAIN, _TEST = (
    "smallnorb-5x46789x9x18x6x2x96x96-training",
    "smallnorb-5x01235x9x18x6x2x96x96-testing",
)
SMALLNORB = tuple(
    Remote(f"smallnorb/{name}.mat.gz", checksum, (f"{_HOST}/{name}.mat.gz",))
    for name, checksum in (
        (f"{_TRAIN}-dat", "5ffd6272a07d32695ee1082a26a41a93a37aab8c28da047f8c34ed348d214873"),
        (f"{_TRAIN}-cat", "2784e542c1922060691090952b6cd6278879a216c90f81476f0f00256d42cdaa"),
        (f"{_TRAIN}-info", "de7eb932ebe7a4ee16217fead60660d0eb3d23632c2f4d1c51f88c501c17bf32"),
        (f"{_TEST}-dat", "cf7104eed3e51174d2f65b66d1e5878b9da233b886f161b0d88f4510ba2c7474"),
        (f"{_TEST}-cat", "ecaf6d5bb8c3bc5eab9cf0258f6d2198dd474e016e374836fc097f2e5ff509ff"),
        (f"{_TEST}-info", "16adf314226327ee006d1a44db8cfef52773c06c829951d5653a9f6f310248a2"),
    )
)
_KINDS = {0x1E3D4C55: np.dtype("u1"), 0x1E3D4C54: np.dtype("<i4")}
NUMBER = 24_300
"""Stereo pairs per half."""
SEEN_AZIMUTHS = (0, 2, 4, 30, 32, 34)
SEEN_ELEVATIONS = (0, 1, 2)


def read_norb(path: Path) -> np.ndarray:
    """Read a `.mat` file of NORB: magic, number of dimensions, at least three sizes, values."""

    def promised(head: bytes) -> int:
        if len(head) < 20:
            return len(head)
        magic, count = struct.unpack("<Ii", head[:8])
        count = min(max(count, 0), 6)
        sizes = struct.unpack(f"<{count}i", head[8 : 8 + 4 * count].ljust(4 * count, b"\0"))
        size = _KINDS[magic].itemsize if magic in _KINDS else 0
        return 8 + 4 * max(3, count) + size * max(0, prod(sizes))

    data = read_bytes(path, promised=promised)
    if len(data) < 20:
        raise TorchcapsError(f"{path}: not a NORB matrix.")
    magic, num_dims = struct.unpack("<Ii", data[:8])
    if magic not in _KINDS or not 1 <= num_dims <= 6 or len(data) < 8 + 4 * max(3, num_dims):
        raise TorchcapsError(f"{path}: not a NORB matrix of bytes or 32-bit integers.")
    header = 8 + 4 * max(3, num_dims)
    shape = struct.unpack(f"<{num_dims}i", data[8 : 8 + 4 * num_dims])
    kind = _KINDS[magic]
    if min(shape) < 0 or len(data) - header != prod(shape) * kind.itemsize:
        raise TorchcapsError(f"{path}: the header says {shape}; the file has another size.")
    return np.frombuffer(data, kind, offset=header).reshape(shape)


def _original(root: Path, stem: str) -> Split:
    arrays = []
    for kind in ("dat", "cat", "info"):
        path = find(root, f"smallnorb/{stem}-{kind}.mat")
        if path is None:
            raise missing("smallnorb", root, SMALLNORB)
        arrays.append(read_norb(path))
    images, category, info = arrays
    valid = images.dtype == np.uint8 and images.ndim == 4 and images.shape[1] == 2
    if not valid or category.shape != images.shape[:1] or info.shape != (len(images), 4):
        raise TorchcapsError(f"{root / 'smallnorb'}: the shapes of the {stem} files do not match.")
    names = ("instance", "elevation", "azimuth", "lighting")
    factors = {n: torch.from_numpy(info[:, i].astype(np.int64)) for i, n in enumerate(names)}
    return Split(
        torch.from_numpy(images.copy()), _categories(root / "smallnorb", category), factors
    )


def _categories(path: Path, values: np.ndarray) -> torch.Tensor:
    labels = torch.from_numpy(values.astype(np.int64))
    check_labels(str(path), labels, 5)
    return labels


def read_copy(path: Path, half: str) -> Split:
    """Read a half of the npz copy: `train` or `test`."""
    optional = tuple(f"{half}_{n}" for n in ("instance", "elevation", "azimuth", "lighting"))
    limits = dict.fromkeys((f"{half}_category", *optional), 8 * NUMBER)
    arrays = read_npz(path, {f"{half}_images": NUMBER * 2 * 96 * 96, **limits}, optional)
    images, labels = arrays[f"{half}_images"], arrays[f"{half}_category"]
    factors = {
        name: torch.from_numpy(arrays[f"{half}_{name}"].astype(np.int64))
        for name in ("instance", "elevation", "azimuth", "lighting")
        if f"{half}_{name}" in arrays
    }
    if images.dtype != np.uint8 or images.ndim != 4 or labels.shape != images.shape[:1]:
        raise TorchcapsError(f"{path}: numbers of images and labels differ.")
    if "azimuth" in factors:
        factors["azimuth"] *= (
            2  # the copy numbers the 18 azimuths 0 to 17, the originals 0, 2, …, 34
        )
    return Split(torch.from_numpy(images), _categories(path, labels), factors)


def _halves(root: Path) -> tuple[Split, Split, str]:
    copy = root / "smallnorb/smallnorb.npz"
    if find(root, f"smallnorb/{_TRAIN}-dat.mat") is None and not copy.exists():
        fetch("smallnorb", root, SMALLNORB)
    if find(root, f"smallnorb/{_TRAIN}-dat.mat"):
        return _original(root, _TRAIN), _original(root, _TEST), "the original files"
    return read_copy(copy, "train"), read_copy(copy, "test"), "a copy through JPEG quality 75"


@dataclass(frozen=True)
class _RandomCrop:
    """Crops training images at a random position in every epoch."""

    size: int
    seed: int

    def __call__(self, split: Split, rows: Tensor, number: Tensor) -> Batch:
        free = split.images.shape[-1] - self.size
        corner = (counter_uniform(self.seed, number, 2) * (free + 1)).long()
        # the canvas is centered on the image, so the shift is relative to a centered crop
        moved = translate(split.images[rows], (free + 1) // 2 - corner, (self.size, self.size))
        return Batch(moved.float() / 255, split.labels[rows])


def _cropped(data: Dataset, crop: int, seed: int) -> Dataset:
    """The preprocessing of capsule papers: separate stereo images, half size, crops of side `crop`.

    Crops are random for training, and centered for validation and test.
    """
    if not crop:
        return data
    size = data.image_shape[1] // 2
    if not 0 < crop <= size:
        raise TorchcapsError(
            f"{data.name}: crop={crop} is larger than the images of {size} pixels."
        )

    def halved(split: Split) -> Split:
        single = split.images.flatten(0, 1)[:, None]
        small = torch.cat([F.avg_pool2d(p.float(), 2).round().byte() for p in single.split(4096)])
        factors = {n: v.repeat_interleave(2) for n, v in split.factors.items()}
        return Split(small, split.labels.repeat_interleave(2), factors)

    def center_crop(split: Split) -> Split:
        first = (size - crop) // 2
        images = split.images[..., first : first + crop, first : first + crop].contiguous()
        return replace(split, images=images)

    train, val, test = (halved(s) for s in (data.train, data.val, data.test))
    render = _RandomCrop(crop, 3 * seed)
    return replace(data, train=train, val=center_crop(val), test=center_crop(test), render=render)


def _seen_by(data: Dataset, eye: int) -> Dataset:
    """The images of one eye of each stereo pair [N,1,H,W]; eye: 0 or 1, or -1 for pairs."""
    if eye == -1:
        return data
    if eye not in (0, 1):
        raise TorchcapsError(f"{data.name}: eye={eye}: give 0 or 1, or -1 for stereo pairs.")
    splits = (data.train, data.val, data.test)
    train, val, test = (replace(s, images=s.images[:, eye : eye + 1]) for s in splits)
    return replace(data, train=train, val=val, test=test)


def _prepared(data: Dataset, crop: int, eye: int, seed: int) -> Dataset:
    if crop and eye != -1:
        raise TorchcapsError(f"{data.name}: crop= takes both eyes apart; give crop= or eye=.")
    return _cropped(_seen_by(data, eye), crop, seed)


def _without(split: Split, toy: int) -> tuple[Split, Split]:
    """Split off the images of one toy of each category. -> the others, this toy"""
    numbers = split.factors.get("instance", torch.empty(0))
    toys = numbers.unique().tolist()
    if toy not in toys:
        raise TorchcapsError(f"smallnorb has no toy {toy} to hold out. Its toys: {toys}.")
    return split[numbers != toy], split[numbers == toy]


@register(
    "smallnorb",
    "48,600 stereo pairs of toys, 96x96; eye=0: one of each; crop=32: apart, 32x32; toy=4: "
    "validate on it",
    SMALLNORB,
)
def smallnorb(root: Path, *, seed: int, crop: int = 0, eye: int = -1, toy: int = -1) -> Dataset:
    """toy: validate on this toy of each category and train on the others; on random images of the
    training toys most models make no errors."""
    train, test, note = _halves(root)
    data = with_validation("smallnorb", train, test, CLASSES, seed=seed, note=note)
    if toy != -1:
        kept, held = _without(train, toy)
        note += f"; validated on toy {toy} of each category, which training lacks"
        data = replace(data, train=kept, val=held, note=note)
    return _prepared(data, crop, eye, seed)


def _novel(
    root: Path, seed: int, toy: int, factor: str, viewpoints: tuple[int, ...], seen: bool
) -> Dataset:
    """Train and validate on these viewpoints, test on novel ones; seen: test on them too.

    With the original files, training uses the training half and testing the test half. The copy has
    poses in its test half only, so one toy of each category of that half is held out for testing:
    the last one, or `toy`.
    """
    train, test, note = _halves(root)
    trained = torch.tensor(viewpoints)
    if factor not in train.factors:
        if toy == -1 and "instance" in test.factors:
            toy = int(test.factors["instance"].max())
        train, test = _without(test, toy)
        note += f"; both halves are of its test half, toy {toy} of each category held for testing"
    elif toy != -1:
        raise TorchcapsError(
            f"smallnorb-{factor}: toy={toy} is only for the copy without poses; the halves of the "
            "original files have different toys."
        )
    train = train[torch.isin(train.factors[factor], trained)]
    test = test[torch.isin(test.factors[factor], trained) == seen]
    kept, held = hold_out(train.labels, seed=seed)
    return Dataset(f"smallnorb-{factor}", train[kept], train[held], test, CLASSES, note)


@register("smallnorb-azimuth", "smallNORB, tested on azimuths that training never saw", SMALLNORB)
def smallnorb_azimuth(
    root: Path, *, seed: int, crop: int = 0, eye: int = -1, toy: int = -1, seen: bool = False
) -> Dataset:
    data = _novel(root, seed, toy, "azimuth", SEEN_AZIMUTHS, seen)
    return _prepared(data, crop, eye, seed)


@register(
    "smallnorb-elevation", "smallNORB, tested on elevations that training never saw", SMALLNORB
)
def smallnorb_elevation(
    root: Path, *, seed: int, crop: int = 0, eye: int = -1, toy: int = -1, seen: bool = False
) -> Dataset:
    data = _novel(root, seed, toy, "elevation", SEEN_ELEVATIONS, seen)
    return _prepared(data, crop, eye, seed)
