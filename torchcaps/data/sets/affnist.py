"""affNIST, the original MATLAB batches. `affnist-like` generates similar images without them."""

from pathlib import Path

import numpy as np
import torch

from torchcaps.data.dataset import Dataset, Split
from torchcaps.data.matlab import read_mat
from torchcaps.data.registry import register
from torchcaps.data.sets.mnist import DIGITS
from torchcaps.data.source import Remote, fetch
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
    """Read one batch: images [1600,N] with digits and transforms."""
    content = read_mat(path)
    record = content.get("affNISTdata")
    if not isinstance(record, dict):
        raise TorchcapsError(f"{path}: not an affNIST batch.")
    images, labels = (
        np.asarray(record.get("image")),
        np.asarray(record.get("label_int")).reshape(-1),
    )
    factors = np.asarray(record.get("human_readable_transform"))
    valid = images.dtype == np.uint8 and images.shape == (1600, labels.size) and labels.size
    if not valid or labels.dtype.kind not in "iuf" or labels.min() < 0 or labels.max() > 9:
        raise TorchcapsError(f"{path}: not [1600,N] bytes with one digit each.")
    transforms = {}
    if factors.shape == (6, labels.size) and factors.dtype.kind in "iuf":
        names = ("rotation", "shear", "scale_x", "scale_y", "translate_x", "translate_y")
        with np.errstate(over="ignore"):  # a damaged double may be too large for a float
            values = torch.from_numpy(factors.astype(np.float32))
        transforms = {name: values[i].clone() for i, name in enumerate(names)}
    pixels = torch.from_numpy(images.T.reshape(-1, 1, 40, 40).copy())
    return Split(pixels, torch.from_numpy(labels.astype(np.int64)), transforms)


def read_batches(folder: Path) -> Split:
    """Read all batches of a split in numerical order."""
    paths = sorted(folder.rglob("*.mat"), key=lambda p: (len(p.stem), p.stem))
    batches = [read_affnist(path) for path in paths]
    if not batches:
        raise TorchcapsError(f"{folder}: no .mat files in it.")
    names = set.intersection(*(set(b.factors) for b in batches))
    factors = {name: torch.cat([b.factors[name] for b in batches]) for name in sorted(names)}
    return Split(
        torch.cat([b.images for b in batches]), torch.cat([b.labels for b in batches]), factors
    )


@register("affnist", "MNIST under affine maps, the original files, 40x40", AFFNIST)
def affnist(root: Path, *, seed: int) -> Dataset:
    del seed
    folders = [root / remote.unpack_to for remote in AFFNIST]
    if not all(folder.exists() for folder in folders):
        fetch("affnist", root, AFFNIST)
    train, val, test = (read_batches(folder) for folder in folders)
    return Dataset("affnist", train, val, test, DIGITS, "the original affNIST files")
