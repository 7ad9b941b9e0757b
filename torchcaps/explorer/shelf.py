"""Models that can be explored, each under an id that is made here: no path ever comes in."""

import re
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from torchcaps.analysis.ranks import rank_frequencies
from torchcaps.analysis.views import evenly
from torchcaps.data import Dataset, Split
from torchcaps.data.registry import shared_loads
from torchcaps.errors import TorchcapsError
from torchcaps.explorer.questions import about
from torchcaps.explorer.wire import pack
from torchcaps.models import CapsuleModel
from torchcaps.models.zoo import PREFIX, zoo_folder, zoo_names
from torchcaps.train.load import data_of, load
from torchcaps.train.recipe import DataSpec
from torchcaps.train.run import Run
from torchcaps.typed import read_object

KEPT = 4
"""Models that are held in memory; the one that was asked for longest ago makes room."""
COUNTED = 200
"""Test images on which ranks are counted."""
RUNS = Path("runs")


class Unknown(TorchcapsError):
    """There is nothing under this name."""


@dataclass(frozen=True)
class Book:
    """A model that can be opened."""

    id: str
    name: str
    source: str
    record: dict[str, Any]
    spec: DataSpec

    @property
    def data(self) -> str:
        """The kind of its images in a word, without the folder that they lie in."""
        return self.spec.name.partition(":")[0]

    @property
    def provenance(self) -> dict[str, Any]:
        """Where its numbers come from, and the numbers."""
        told = {k: self.record.get(k, "") for k in ("command", "commit", "date", "device")}
        return {**told, "seed": self.record["recipe"]["seed"], "results": self.record["results"]}


def finished_runs(root: Path = RUNS) -> list[Path]:
    """Folders of finished runs below a folder, the newest first."""
    found = [p.parent for p in root.glob("*/record.json")]
    found += [p.parent for p in root.glob("*/*/record.json")]
    return sorted(found, key=lambda p: (p / "record.json").stat().st_mtime, reverse=True)


class Shelf:
    """Runs in the order in which they are given, then the zoo."""

    def __init__(self, folders: list[Path], zoo: bool = True):
        self.books: dict[str, Book] = {}
        self._models: OrderedDict[str, CapsuleModel] = OrderedDict()
        self._data: dict[str, Dataset] = {}
        self._lock = Lock()
        for folder in folders:
            run = Run.open(folder)
            recipe = run.recipe()
            if not run.record_file.exists():
                raise TorchcapsError(f"{folder} is not finished: torchcaps resume {folder}.")
            self._add(folder.name, run.name, str(folder), run.record(), recipe.data)
        for name in zoo_names() if zoo else ():
            record = read_object(zoo_folder(name) / "record.json")
            row = record["recipe"]["row"]
            spec = DataSpec(record["recipe"]["data"]["name"])
            self._add(f"{PREFIX}{name}", row, f"{PREFIX}{name}", record, spec)
        if not self.books:
            raise TorchcapsError("There is no finished run here: torchcaps train demo/capsnet.")

    @staticmethod
    def of(source: str) -> "Shelf":
        """One model alone: of a run, or of the zoo."""
        if not source.startswith(PREFIX):
            return Shelf([Path(source)], zoo=False)
        name = zoo_folder(source).name
        shelf = Shelf([])
        shelf.books = {f"{PREFIX}{name}": shelf.book(f"{PREFIX}{name}")}
        return shelf

    def _add(
        self, stem: str, name: str, source: str, record: dict[str, Any], spec: DataSpec
    ) -> None:
        stem = re.sub(r"[^\w:.-]+", "-", stem) or "run"
        key, number = stem, 2
        while key in self.books:
            key, number = f"{stem}-{number}", number + 1
        self.books[key] = Book(key, name, source, record, spec)

    def book(self, key: str) -> Book:
        if key not in self.books:
            raise Unknown("There is no such run.")
        return self.books[key]

    def model(self, key: str) -> CapsuleModel:
        book = self.book(key)
        with self._lock:
            if key not in self._models:
                self._models[key] = load(book.source).cpu().eval().requires_grad_(False)
            self._models.move_to_end(key)
            while len(self._models) > KEPT:
                self._models.popitem(last=False)
            return self._models[key]

    def data(self, key: str) -> Dataset:
        """The data that a model was trained on, loaded once for all that share it."""
        spec = self.book(key).spec
        with self._lock, shared_loads():
            if spec.name not in self._data:
                self._data[spec.name] = data_of(spec)
            return self._data[spec.name]

    def about(self, key: str) -> dict[str, Any]:
        """What a page must know of a model, and of its data, to draw its panels."""
        model, data = self.model(key), self.data(key)
        found = about(model)
        found["classes"] = found["classes"] or list(data.classes)
        if "ranks" in found["questions"]:
            part = data.test[evenly(len(data.test), COUNTED)]
            found["frequencies"] = rank_frequencies(model, part).tolist()
        return found


def shown(split: Split, rows: Tensor, count: int) -> bytes:
    """Images of a split as bytes, with a label each and how many can be asked for in all."""
    batch = split.batch(rows)
    labels = batch.labels if batch.labels.dim() == 1 else batch.labels[:, 0]
    pixels = (batch.images * 255).round().to(torch.uint8)
    total = torch.tensor([count], dtype=torch.int32)
    return pack({"images": pixels, "labels": labels.to(torch.int32), "count": total})
