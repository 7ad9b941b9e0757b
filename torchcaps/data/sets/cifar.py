"""CIFAR-10 and CIFAR-100, binary and python versions."""

from pathlib import Path

import numpy as np
import torch

from torchcaps.data.dataset import Dataset, Split, with_validation
from torchcaps.data.pickled import Refused, array_of, read_pickle
from torchcaps.data.registry import register
from torchcaps.data.source import Remote, check_labels, fetch, missing, read_bytes
from torchcaps.errors import TorchcapsError

_HOST = "https://www.cs.toronto.edu/~kriz"
CIFAR10 = (
    Remote(
        "cifar-10-binary.tar.gz",
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        (f"{_HOST}/cifar-10-binary.tar.gz",),
        unpack_to="cifar-10-batches-bin",
    ),
)
CIFAR100 = (
    Remote(
        "cifar-100-binary.tar.gz",
        "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        (f"{_HOST}/cifar-100-binary.tar.gz",),
        unpack_to="cifar-100-binary",
    ),
)
LARGEST = 200 * 2**20
"""Largest file in bytes; CIFAR-100's training images have 154 million."""
_BATCHES = [f"data_batch_{i}" for i in range(1, 6)]
_CIFAR10_SHA256 = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}


def read_binary(path: Path, label_bytes: int, expected_sha256: str | None = None) -> Split:
    """Read rows of `label_bytes` labels (the last one is used) and 3x32x32 planar pixels."""
    data = np.frombuffer(read_bytes(path, expected_sha256, LARGEST), np.uint8)
    row = label_bytes + 3072
    if not len(data) or len(data) % row:
        raise TorchcapsError(f"{path}: {len(data)} bytes are not rows of {row}.")
    rows = torch.from_numpy(data.reshape(-1, row).copy())
    return Split(
        rows[:, label_bytes:].reshape(-1, 3, 32, 32).clone(), rows[:, label_bytes - 1].long()
    )


def read_python(path: Path, label_key: bytes) -> Split:
    """Read one batch of the python version without unpickling (see `data.pickled`)."""
    try:
        raw = read_pickle(read_bytes(path, largest=LARGEST))
        if not isinstance(raw, dict):
            raise Refused("not a dict")
        content = {k if isinstance(k, bytes) else str(k).encode(): v for k, v in raw.items()}
        if b"data" not in content or label_key not in content:
            raise Refused(f"no data or no {label_key.decode()}")
        pixels, labels = array_of(content[b"data"]), array_of(content[label_key])
    except Refused as error:
        raise TorchcapsError(f"{path}: not a CIFAR batch ({error}).") from None
    valid = pixels.dtype == np.uint8 and pixels.ndim == 2 and pixels.shape[1] == 3072
    if not valid or labels.shape != pixels.shape[:1] or labels.dtype.kind not in "iu":
        raise TorchcapsError(f"{path}: not rows of 3072 bytes with one label each.")
    images = torch.from_numpy(pixels.reshape(-1, 3, 32, 32).copy())
    return Split(images, torch.from_numpy(labels.astype(np.int64)))


def read_names(path: Path) -> tuple[str, ...]:
    """Read CIFAR-100's class names, one word per class."""
    try:
        words = read_bytes(path, largest=2**16).decode().split()
    except UnicodeDecodeError:
        words = []
    if len(words) != len(set(words)) or len(words) != 100:
        raise TorchcapsError(f"{path}: not the names of 100 classes, one per line.")
    return tuple(words)


def _join(batches: list[Split]) -> Split:
    return Split(torch.cat([b.images for b in batches]), torch.cat([b.labels for b in batches]))


def _make(name: str, classes: tuple[str, ...], train: Split, test: Split, seed: int) -> Dataset:
    for split in (train, test):
        check_labels(name, split.labels, len(classes))
    return with_validation(name, train, test, classes, seed=seed)


@register("cifar10", "60,000 photographs in 10 classes, 32x32x3", CIFAR10)
def cifar10(root: Path, *, seed: int) -> Dataset:
    classes = tuple("airplane automobile bird cat deer dog frog horse ship truck".split())
    python, binary = root / "cifar-10-batches-py", root / "cifar-10-batches-bin"
    if python.exists() and not binary.exists():
        batches = [read_python(python / name, b"labels") for name in (*_BATCHES, "test_batch")]
    else:
        if not binary.exists():
            fetch("cifar10", root, CIFAR10)
        names = [f"{name}.bin" for name in (*_BATCHES, "test_batch")]
        if not all((binary / name).exists() for name in names):
            raise missing("cifar10", root, CIFAR10)
        batches = [read_binary(binary / name, 1, _CIFAR10_SHA256[name]) for name in names]
    return _make("cifar10", classes, _join(batches[:-1]), batches[-1], seed)


@register("cifar100", "60,000 photographs in 100 classes, 32x32x3", CIFAR100)
def cifar100(root: Path, *, seed: int) -> Dataset:
    classes = tuple(f"class {i}" for i in range(100))
    python, binary = root / "cifar-100-python", root / "cifar-100-binary"
    if python.exists() and not binary.exists():
        train, test = (read_python(python / name, b"fine_labels") for name in ("train", "test"))
    else:
        if not binary.exists():
            fetch("cifar100", root, CIFAR100)
        if not all((binary / name).exists() for name in ("train.bin", "test.bin")):
            raise missing("cifar100", root, CIFAR100)
        train, test = (read_binary(binary / name, 2) for name in ("train.bin", "test.bin"))
    names = binary / "fine_label_names.txt"
    classes = read_names(names) if names.exists() else classes
    return _make("cifar100", classes, train, test, seed)
