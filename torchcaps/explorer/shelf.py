"""Models that can be explored, each under an id that is made here: no path ever comes in."""

import re
from collections import OrderedDict
from collections.abc import Sequence
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
FITTED = 500
"""Test images that are brought to the size of a model which came without its own."""
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
    fitted: tuple[int, int, int] | None = None
    """The shape into which images are brought, where a model came without its data."""

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
    """Models in the order in which they are given, then the zoo: runs, folders of saved models, ids
    of the hub, names of the zoo. data: images for those that come without a run.
    """

    def __init__(self, sources: Sequence[str | Path], zoo: bool = True, data: str = "digits"):
        self.books: dict[str, Book] = {}
        self._models: OrderedDict[str, CapsuleModel] = OrderedDict()
        self._data: dict[tuple[Any, ...], Dataset] = {}
        self._lock = Lock()
        for source in map(str, sources):
            if source.startswith(PREFIX):
                self._of_zoo(zoo_folder(source).name)
            elif (Path(source) / "recipe.json").exists():
                self._of_run(Path(source))
            else:
                self._saved(source, data)
        for name in zoo_names() if zoo else ():
            if f"{PREFIX}{name}" not in self.books:
                self._of_zoo(name)
        if not self.books:
            raise TorchcapsError("There is no finished run here: torchcaps train demo/capsnet.")

    def _of_run(self, folder: Path) -> None:
        run = Run.open(folder)
        recipe = run.recipe()
        if not run.record_file.exists():
            raise TorchcapsError(f"{folder} is not finished: torchcaps resume {folder}.")
        self._add(folder.name, run.name, str(folder), run.record(), recipe.data)

    def _of_zoo(self, name: str) -> None:
        record = read_object(zoo_folder(name) / "record.json")
        spec = DataSpec(record["recipe"]["data"]["name"])
        self._add(f"{PREFIX}{name}", record["recipe"]["row"], f"{PREFIX}{name}", record, spec)

    def _saved(self, source: str, data: str) -> None:
        """A model without a run: its images are not known, so others are brought to its size."""
        model = load(source)
        name = Path(source).name
        nobody = {"recipe": {"name": "", "row": name, "seed": "", "paper": ""}, "results": []}
        key = self._add(name, name, source, nobody, DataSpec(data), model.config.image_shape)
        self._keep(key, model)

    def _add(
        self,
        stem: str,
        name: str,
        source: str,
        record: dict[str, Any],
        spec: DataSpec,
        fitted: tuple[int, int, int] | None = None,
    ) -> str:
        stem = re.sub(r"[^\w:.-]+", "-", stem) or "run"
        key, number = stem, 2
        while key in self.books:
            key, number = f"{stem}-{number}", number + 1
        self.books[key] = Book(key, name, source, record, spec, fitted)
        return key

    def book(self, key: str) -> Book:
        if key not in self.books:
            raise Unknown("There is no such run.")
        return self.books[key]

    def model(self, key: str) -> CapsuleModel:
        book = self.book(key)
        with self._lock:
            if key not in self._models:
                self._keep(key, load(book.source))
            self._models.move_to_end(key)
            return self._models[key]

    def _keep(self, key: str, model: CapsuleModel) -> None:
        self._models[key] = model.cpu().eval().requires_grad_(False)
        while len(self._models) > KEPT:
            self._models.popitem(last=False)

    def data(self, key: str) -> Dataset:
        """The data that a model was trained on, loaded once for all that share it."""
        book = self.book(key)
        names = self.model(key).class_names if book.fitted else ()
        known = (book.spec, book.fitted, names)
        with self._lock, shared_loads():
            if known not in self._data:
                found = data_of(book.spec)
                if book.fitted:
                    found = fitted(found, book.fitted, names)
                self._data[known] = found
            return self._data[known]

    def about(self, key: str) -> dict[str, Any]:
        """What a page must know of a model, and of its data, to draw its panels."""
        model, data = self.model(key), self.data(key)
        found = about(model)
        found["classes"] = found["classes"] or list(data.classes)
        if not found["classes"] and "logits" in model.provides:
            found["classes"] = [str(n) for n in range(model.config.num_classes)]
        if "ranks" in found["questions"]:
            part = data.test[evenly(len(data.test), COUNTED)]
            found["frequencies"] = rank_frequencies(model, part).tolist()
        return found


def fitted(data: Dataset, shape: tuple[int, int, int], names: tuple[str, ...]) -> Dataset:
    """The first test images of a set in another size, in grey or in colour as is asked for; with
    labels where the set's classes are those of the model.
    """
    test = data.test
    images = test.batch(torch.arange(min(FITTED, len(test)))).images
    channels, height, width = shape
    images = torch.nn.functional.interpolate(images, (height, width), mode="bilinear")
    if images.shape[1] != channels:
        images = images.mean(1, keepdim=True).expand(-1, channels, -1, -1)
    labels = test.labels[: len(images)]
    labels = labels if names == data.classes else torch.full_like(labels, -1)
    part = Split((images.clamp(0, 1) * 255).round().byte(), labels)
    return Dataset(data.name, part, part, part, names)


def shown(split: Split, rows: Tensor, count: int) -> bytes:
    """Images of a split as bytes, with a label each and how many can be asked for in all."""
    batch = split.batch(rows)
    labels = batch.labels if batch.labels.dim() == 1 else batch.labels[:, 0]
    pixels = (batch.images * 255).round().to(torch.uint8)
    total = torch.tensor([count], dtype=torch.int32)
    return pack({"images": pixels, "labels": labels.to(torch.int32), "count": total})
