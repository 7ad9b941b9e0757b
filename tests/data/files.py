"""Small files in the official formats, for the readers' tests."""

import gzip
import pickle
import struct
from pathlib import Path

import numpy as np
import scipy.io

RNG = np.random.default_rng(0)


def idx(path: Path, array: np.ndarray, zipped: bool = False) -> None:
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    data = header + array.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if zipped else data)


def mnist(root: Path, name: str = "mnist", zipped: bool = True, count: int = 40) -> None:
    for part, n in (("train", count), ("t10k", 10)):
        images = RNG.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        labels = (np.arange(n) % 10).astype(np.uint8)
        suffix = ".gz" if zipped else ""
        idx(root / name / f"{part}-images-idx3-ubyte{suffix}", images, zipped)
        idx(root / name / f"{part}-labels-idx1-ubyte{suffix}", labels, zipped)


def cifar_rows(n: int) -> tuple[np.ndarray, np.ndarray]:
    return RNG.integers(0, 256, (n, 3072), dtype=np.uint8), (np.arange(n) % 10).astype(np.uint8)


def cifar_python(path: Path, label_key: bytes, n: int = 20) -> tuple[np.ndarray, np.ndarray]:
    pixels, labels = cifar_rows(n)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {b"data": pixels, label_key: labels.tolist(), b"batch_label": b"a batch"}
    path.write_bytes(pickle.dumps(content, protocol=2))
    return pixels, labels


def norb(path: Path, array: np.ndarray) -> None:
    magic = {"uint8": 0x1E3D4C55, "int32": 0x1E3D4C54}[array.dtype.name]
    shape = list(array.shape) + [1] * (3 - array.ndim)
    header = struct.pack(f"<Ii{len(shape)}i", magic, array.ndim, *shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header + array.tobytes())


def smallnorb(root: Path) -> None:
    """5 categories x 2 instances x 9 elevations x 18 azimuths x 1 lighting, each half."""
    grid = np.stack(
        np.meshgrid(range(5), range(2), range(9), range(0, 36, 2), [0], indexing="ij"), -1
    )
    rows = grid.reshape(-1, 5).astype(np.int32)
    halves = ("5x46789x9x18x6x2x96x96-training", "5x01235x9x18x6x2x96x96-testing")
    for half in halves:
        images = np.zeros((len(rows), 2, 96, 96), np.uint8)
        images[:, :, 0, 0] = rows[:, 3:4]  # so that a test can see which image is which
        stem = f"smallnorb-{half}"
        norb(root / "smallnorb" / f"{stem}-dat.mat", images)
        norb(root / "smallnorb" / f"{stem}-cat.mat", np.ascontiguousarray(rows[:, 0]))
        norb(root / "smallnorb" / f"{stem}-info.mat", np.ascontiguousarray(rows[:, 1:]))


def svhn(path: Path, n: int = 30) -> np.ndarray:
    images = RNG.integers(0, 256, (32, 32, 3, n), dtype=np.uint8)
    labels = (np.arange(n) % 10 + 1).astype(np.uint8)[:, None]
    path.parent.mkdir(parents=True, exist_ok=True)
    scipy.io.savemat(path, {"X": images, "y": labels})
    return images


def affnist(path: Path, n: int = 12) -> np.ndarray:
    images = RNG.integers(0, 256, (1600, n), dtype=np.uint8)
    record = {
        "image": images,
        "label_int": (np.arange(n) % 10).astype(np.uint8)[None],
        "human_readable_transform": RNG.normal(size=(6, n)),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    scipy.io.savemat(path, {"affNISTdata": record})
    return images


def dsprites(path: Path, n: int = 30) -> np.ndarray:
    images = RNG.integers(0, 2, (n, 64, 64), dtype=np.uint8)
    factors = np.stack([np.zeros(n), np.arange(n) % 3, *RNG.integers(0, 6, (4, n))], 1).astype(
        np.int64
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, imgs=images, latents_classes=factors)
    return images
