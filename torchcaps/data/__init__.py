"""Data sets as uint8 tensors, whole on the device: `torchcaps.data.load("digits")`."""

from torchcaps.data import (
    affnist,
    cifar,
    constellations,
    digits,
    dsprites,
    folder,
    generated,
    given,
    imagenette,
    mnist,
    multimnist,
    smallnorb,
    svhn,
)
from torchcaps.data.augment import Augment
from torchcaps.data.dataset import Batch, Dataset, Split, hold_out
from torchcaps.data.given import as_dataset
from torchcaps.data.loader import Loader
from torchcaps.data.registry import entries, load

__all__ = [
    "Augment",
    "Batch",
    "Dataset",
    "Loader",
    "Split",
    "as_dataset",
    "entries",
    "hold_out",
    "load",
    "affnist",
    "cifar",
    "constellations",
    "digits",
    "dsprites",
    "folder",
    "generated",
    "given",
    "imagenette",
    "mnist",
    "multimnist",
    "smallnorb",
    "svhn",
]
