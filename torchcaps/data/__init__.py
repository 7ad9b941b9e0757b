"""Data sets as uint8 tensors on the device: `torchcaps.data.load("digits")`."""

from torchcaps.data import convert, sets
from torchcaps.data.augment import Augment
from torchcaps.data.convert import as_dataset
from torchcaps.data.dataset import Batch, Dataset, Split, hold_out
from torchcaps.data.loader import Loader
from torchcaps.data.registry import entries, load

__all__ = [
    "Augment",
    "Batch",
    "Dataset",
    "Loader",
    "Split",
    "as_dataset",
    "convert",
    "entries",
    "hold_out",
    "load",
    "sets",
]
