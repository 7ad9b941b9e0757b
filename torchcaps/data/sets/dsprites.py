"""dSprites: 737,280 images of three shapes, one for each combination of five factors."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchcaps.data.dataset import Dataset, Split
from torchcaps.data.registry import register
from torchcaps.data.source import Remote, fetch, read_bytes, read_npz
from torchcaps.errors import TorchcapsError
from torchcaps.functional import counter_uniform

_FILE = "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz"
DSPRITES = (
    Remote(
        f"dsprites/{_FILE}",
        "857dc001287e8efa226e0025fac6b29e5745c621b380b0d3363e4e33f4e28fa2",
        (f"https://github.com/google-deepmind/dsprites-dataset/raw/master/{_FILE}",),
    ),
)

NUMBER = 737_280


def read_dsprites(path: Path) -> Split:
    """Read images (0 or 255), shapes as labels, and the other factors, without unpickling."""
    arrays = read_npz(path, {"imgs": NUMBER * 64 * 64, "latents_classes": NUMBER * 6 * 8})
    images, factors = arrays["imgs"], arrays["latents_classes"]
    valid = images.dtype == np.uint8 and images.ndim == 3 and factors.shape == (len(images), 6)
    if not valid or factors.dtype.kind not in "iu" or not np.isin(factors[:, 1], (0, 1, 2)).all():
        raise TorchcapsError(f"{path}: not images with six factors each.")
    names = ("scale", "orientation", "x", "y")
    columns = torch.from_numpy(factors.astype(np.int64))
    named = {name: columns[:, i + 2].clone() for i, name in enumerate(names)}
    return Split(torch.from_numpy(images)[:, None] * 255, columns[:, 1].clone(), named)


def _shuffled(count: int, seed: int) -> Tensor:
    return counter_uniform(seed, torch.arange(count), 1)[:, 0].argsort(stable=True)


@register(
    "dsprites", "737,280 images of three shapes under five factors, 64x64", DSPRITES, revision=2
)
def dsprites(root: Path, *, seed: int) -> Dataset:
    """The label is the shape; 80 / 10 / 10 %, the same test images for every seed."""
    path = root / DSPRITES[0].path
    if not path.exists():
        fetch("dsprites", root, DSPRITES)
    read_bytes(path, DSPRITES[0].sha256)
    data = read_dsprites(path)
    tenth = len(data) // 10
    test, rest = _shuffled(len(data), 0)[:tenth], _shuffled(len(data), seed)
    rest = rest[~torch.isin(rest, test)]
    val, train = rest[:tenth], rest[tenth:]
    return Dataset("dsprites", data[train], data[val], data[test], ("square", "ellipse", "heart"))
