"""SVHN: house numbers, in MATLAB files."""

from pathlib import Path

import numpy as np
import torch

from torchcaps.data.dataset import Dataset, Split, with_validation
from torchcaps.data.matlab import read_mat
from torchcaps.data.registry import register
from torchcaps.data.sets.mnist import DIGITS
from torchcaps.data.source import Remote, fetch
from torchcaps.errors import TorchcapsError

_SVHN_HOST = "http://ufldl.stanford.edu/housenumbers"
SVHN = tuple(
    Remote(f"svhn/{name}", checksum, (f"{_SVHN_HOST}/{name}",))
    for name, checksum in (
        ("train_32x32.mat", "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8"),
        ("test_32x32.mat", "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b"),
    )
)


def read_svhn(path: Path) -> Split:
    content = read_mat(path)
    images, labels = np.asarray(content.get("X")), np.asarray(content.get("y"))
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != (32, 32, 3):
        raise TorchcapsError(f"{path}: X is not uint8 [32,32,3,N].")
    if not labels.size or labels.size != images.shape[3]:
        raise TorchcapsError(f"{path}: y does not have one label per image.")
    if labels.dtype.kind not in "iuf" or labels.min() < 0 or labels.max() > 10:
        raise TorchcapsError(f"{path}: y has labels outside 1 to 10.")
    # label 10 is the digit zero
    classes = torch.from_numpy(labels.reshape(-1).astype(np.int64) % 10)
    return Split(torch.from_numpy(images.transpose(3, 2, 0, 1).copy()), classes)


@register("svhn", "99,289 house numbers, 32x32x3", SVHN)
def svhn(root: Path, *, seed: int) -> Dataset:
    paths = [root / remote.path for remote in SVHN]
    if not all(path.exists() for path in paths):
        fetch("svhn", root, SVHN)
    train, test = (read_svhn(path) for path in paths)
    return with_validation("svhn", train, test, DIGITS, seed=seed)
