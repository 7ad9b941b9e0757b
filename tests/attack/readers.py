"""Every file of others that torchcaps reads: how to write a small good one, and who reads it."""

import json
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import torchcaps
from tests.data import files
from torchcaps.data import images as pictures
from torchcaps.data.sets import affnist, cifar, dsprites, folder, mnist, smallnorb, svhn
from torchcaps.data.source import unpack
from torchcaps.models.registry import from_folder
from torchcaps.papers import records as results
from torchcaps.training import checkpoint, recipe
from torchcaps.training.recipe import Recipe
from torchcaps.training.run import Run

PICTURES = ("png", "jpg", "gif", "webp", "bmp", "tif", "ppm")
LINE = {
    "paper": "little", "table": "t", "row": "A", "protocol": "ours", "seed": 0, "recipe": "x",
    "data": "digits", "split": "test", "metric": "accuracy", "value": 0.5, "n": 5, "run": "r1",
    "command": "c", "commit": "abc", "date": "2026-11-16T00:00:00+00:00", "device": "d",
}  # fmt: skip
AMENDMENTS = [
    {"kind": "note", "match": {"run": "r1"}, "note": "n"},
    {"kind": "supersede", "match": {"seed": 0}, "because": "b"},
    {"kind": "rename", "match": {"data": "digits"}, "data": "d2", "because": "b"},
    {"kind": "digests", "digests": {"x [ours]": ["abc", 1]}},
]
RECORD = {
    "recipe": {**recipe.to_dict(Recipe()), "paper": "little", "table": "t", "row": "A"},
    **{k: LINE[k] for k in ("run", "command", "commit", "date", "device")},
    "results": [{k: LINE[k] for k in ("data", "split", "metric", "value", "n")}],
}


@dataclass(frozen=True)
class Reader:
    file: str
    """Where the file stands under the folder of this reader."""
    write: Callable[[Path], Any]
    """Makes that folder, with the file and what it needs beside it."""
    read: Callable[[Path], Any]
    """Reads the file, of which it gets the path."""


def _tree(path: Path) -> Path:
    """Six pictures in two class folders."""
    for number in range(6):
        place = path / ("cat", "dog")[number % 2] / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        _picture(place)
    return path


def _picture(path: Path) -> None:
    Image.fromarray(files.RNG.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(path)


def _table(path: Path) -> None:
    lines = [f"{n},{('cat', 'dog')[n % 2]}" for n in range(6)]
    _tree(path)
    (path / "labels.csv").write_text("\n".join(["file,label", *lines]) + "\n")


def _tar(path: Path) -> None:
    with tarfile.open(path / "set.tgz", "w:gz") as archive:
        archive.add(_tree(path / "set" / "train"), "set/train")


def _zip(path: Path) -> None:
    files.affnist(path / "1.mat", 3)
    with zipfile.ZipFile(path / "set.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(path / "1.mat", "batches/1.mat")


def _copy(path: Path) -> None:
    """smallNORB's copy as an npz file."""
    numbers = {f"test_{n}": np.zeros(3, np.int64) for n in ("category", "instance", "azimuth")}
    np.savez(path / "copy.npz", test_images=np.zeros((3, 2, 8, 8), np.uint8), **numbers)


def _model(path: Path) -> None:
    small = {"channels": 4, "num_types": 2, "hidden": (8,)}
    torchcaps.create_model("capsnet-small", **small).save_pretrained(path)


def _record(path: Path) -> None:
    (path / "recipe.json").write_text(json.dumps(recipe.to_dict(Recipe())))
    (path / "record.json").write_text(json.dumps(RECORD, indent=2))


def _checkpoint(path: Path) -> None:
    model = torchcaps.create_model("capsnet-small", channels=4, num_types=2, hidden=(8,))
    weights = checkpoint.tensors_of(model)
    checkpoint.save(path, checkpoint.State(step=7), weights, {"rng/cpu": torch.get_rng_state()})


def _recorded(path: Path) -> None:
    results.append_record(Run(path.parent).record(), path.parent / "results")


def _unpacked(reads: Callable[[Path], Any], path: Path) -> None:
    unpack(path, path.parent / "unpacked")
    reads(path.parent / "unpacked")


def _results(path: Path) -> None:
    results.read(path)
    results.newest(path, ("recipe", "seed"))
    results.append(path, [LINE])
    results.append_record(RECORD, path.parent)


def _lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


IDX = files.RNG.integers(0, 256, (3, 4, 5), dtype=np.uint8)
NORB = np.arange(24, dtype=np.int32).reshape(2, 3, 4)


def _binary(path: Path) -> None:
    pixels, labels = files.cifar_rows(3)
    (path / "binary").write_bytes(np.concatenate([labels[:, None], pixels], 1).tobytes())


def _whole_folder(path: Path) -> None:
    folder.load_folder("f", path, seed=0, size=8, mode="RGB")


def _of_labels(path: Path) -> None:
    folder.load_folder("f", path.parent, seed=0, size=8, mode="RGB", labels=path.name)


READERS = {
    "idx": Reader("idx", lambda p: files.idx(p / "idx", IDX), lambda p: mnist.read_idx(p, 3)),
    "idx.gz": Reader(
        "idx.gz", lambda p: files.idx(p / "idx.gz", IDX, True), lambda p: mnist.read_idx(p, 3)
    ),
    "cifar, binary": Reader("binary", _binary, lambda p: cifar.read_binary(p, 1)),
    "cifar, python": Reader(
        "batch",
        lambda p: files.cifar_python(p / "batch", b"labels", 3),
        lambda p: cifar.read_python(p, b"labels"),
    ),
    "cifar, names": Reader(
        "names.txt",
        lambda p: (p / "names.txt").write_text("\n".join(f"name{n}" for n in range(100))),
        cifar.read_names,
    ),
    "norb": Reader("norb", lambda p: files.norb(p / "norb", NORB), smallnorb.read_norb),
    "norb.npz": Reader("copy.npz", _copy, lambda p: smallnorb.read_copy(p, "test")),
    "svhn": Reader("svhn.mat", lambda p: files.svhn(p / "svhn.mat", 3), svhn.read_svhn),
    "affnist": Reader("a.mat", lambda p: files.affnist(p / "a.mat", 3), affnist.read_affnist),
    "affnist.zip": Reader("set.zip", _zip, lambda p: _unpacked(affnist.read_batches, p)),
    "imagenette.tgz": Reader("set.tgz", _tar, lambda p: _unpacked(_whole_folder, p)),
    "dsprites": Reader("d.npz", lambda p: files.dsprites(p / "d.npz", 3), dsprites.read_dsprites),
    "labels.csv": Reader("labels.csv", _table, _of_labels),
    "config.json": Reader("config.json", _model, lambda p: from_folder(p.parent)),
    "model.safetensors": Reader("model.safetensors", _model, lambda p: from_folder(p.parent)),
    "recipe.json": Reader(
        "recipe.json", lambda p: recipe.save(Recipe(), p / "recipe.json"), recipe.load
    ),
    "record.json": Reader("record.json", _record, _recorded),
    "start.json": Reader(
        "start.json", lambda p: _lines(p / "start.json", [LINE]), lambda p: Run(p.parent).start()
    ),
    "metrics.jsonl": Reader(
        "metrics.jsonl",
        lambda p: _lines(p / "metrics.jsonl", [{"epoch": n, "step": 3 * n} for n in range(3)]),
        lambda p: Run(p.parent).metrics,
    ),
    "results": Reader(
        "little.jsonl", lambda p: _lines(p / "little.jsonl", [LINE, *AMENDMENTS]), _results
    ),
    "state.json": Reader("00000007/state.json", _checkpoint, lambda p: checkpoint.load(p.parent)),
    "weights": Reader(
        "00000007/weights.safetensors", _checkpoint, lambda p: checkpoint.load(p.parent)
    ),
    **{
        kind: Reader(
            f"image.{kind}",
            lambda p, kind=kind: _picture(p / f"image.{kind}"),
            lambda p: pictures.read_image(p, 8, "RGB"),
        )
        for kind in PICTURES
    },
}
