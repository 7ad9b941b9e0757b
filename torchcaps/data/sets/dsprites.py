"""dSprites: 737,280 images of three shapes, one for each combination of five factors."""

from pathlib import Path

import numpy as np
import torch

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


@register("dsprites", "737,280 drawings of three shapes under five factors, 64x64", DSPRITES)
def dsprites(root: Path, *, seed: int) -> Dataset:
    """The label is the shape; the seed splits the images 80 / 10 / 10 %."""
    path = root / DSPRITES[0].path
    if not path.exists():
        fetch("dsprites", root, DSPRITES)
    read_bytes(path, DSPRITES[0].sha256)
    data = read_dsprites(path)
    order = counter_uniform(seed, torch.arange(len(data)), 1)[:, 0].argsort(stable=True)
    tenth = len(data) // 10
    test, val, train = order[:tenth], order[tenth : 2 * tenth], order[2 * tenth :]
    return Dataset("dsprites", data[train], data[val], data[test], ("square", "ellipse", "heart"))
