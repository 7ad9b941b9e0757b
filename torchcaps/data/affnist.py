"""affNIST, the original MATLAB batches (its host often fails: `affnist-like` draws by its
description)."""

from pathlib import Path

import numpy as np
import torch

from torchcaps.data.dataset import Dataset, Split
from torchcaps.data.download import fetch
from torchcaps.data.matlab import read_mat
from torchcaps.data.mnist import DIGITS
from torchcaps.data.registry import register
from torchcaps.data.source import Remote
from torchcaps.errors import TorchcapsError

_AFFNIST_HOST = "http://www.cs.toronto.edu/~tijmen/affNIST/32x/transformed"
AFFNIST = tuple(
    Remote(f"affnist/{name}.zip", checksum, (f"{_AFFNIST_HOST}/{name}.zip",), f"affnist/{name}")
    for name, checksum in (
        ("training_batches", "b6aa79e6d659111ff4c704c241cc86b828e468a5d6f7a1c5b888e6a3af3b3963"),
        ("validation_batches", "c613d7718fd93f1fb2f6a90cc18b97f6ec2b76929559374f79aa7081bdfd358c"),
        ("test_batches", "83f829c01c021fa731e062e7671b0075a3e8de0a511fb6b5d403458528d0e0d1"),
    )
)


def read_affnist(path: Path) -> Split:
    """One batch: images [1600,N] and the digit and the transform of each."""
    content = read_mat(path)
    record = content.get("affNISTdata")
    if not isinstance(record, dict):
        raise TorchcapsError(f"{path}: not an affNIST batch.")
    images, labels = (
        np.asarray(record.get("image")),
        np.asarray(record.get("label_int")).reshape(-1),
    )
    factors = np.asarray(record.get("human_readable_transform"))
    good = images.dtype == np.uint8 and images.shape == (1600, labels.size) and labels.size
    if not good or labels.dtype.kind not in "iuf" or labels.min() < 0 or labels.max() > 9:
        raise TorchcapsError(f"{path}: not [1600,N] bytes with a digit each.")
    known = {}
    if factors.shape == (6, labels.size) and factors.dtype.kind in "iuf":
        names = ("rotation", "shear", "scale_x", "scale_y", "translate_x", "translate_y")
        with np.errstate(over="ignore"):  # a damaged double may be too large for a float
            values = torch.from_numpy(factors.astype(np.float32))
        known = {name: values[i].clone() for i, name in enumerate(names)}
    pixels = torch.from_numpy(images.T.reshape(-1, 1, 40, 40).copy())
    return Split(pixels, torch.from_numpy(labels.astype(np.int64)), known)


def read_batches(folder: Path) -> Split:
    """All batches of a split, in the order of their numbers."""
    paths = sorted(folder.rglob("*.mat"), key=lambda p: (len(p.stem), p.stem))
    parts = [read_affnist(path) for path in paths]
    if not parts:
        raise TorchcapsError(f"{folder}: no .mat batches in it.")
    names = set.intersection(*(set(p.factors) for p in parts))
    factors = {name: torch.cat([p.factors[name] for p in parts]) for name in sorted(names)}
    return Split(
        torch.cat([p.images for p in parts]), torch.cat([p.labels for p in parts]), factors
    )


@register("affnist", "MNIST under affine maps, the original files, 40x40", AFFNIST)
def affnist(root: Path, *, seed: int) -> Dataset:
    del seed
    folders = [root / remote.unpack_to for remote in AFFNIST]
    if not all(folder.exists() for folder in folders):
        fetch("affnist", root, AFFNIST)
    train, val, test = (read_batches(folder) for folder in folders)
    return Dataset("affnist", train, val, test, DIGITS, "the original affNIST files")
