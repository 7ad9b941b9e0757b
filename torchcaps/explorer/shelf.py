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

from torchcaps.analysis.nearest import TrainingPoses, why_no_poses
from torchcaps.analysis.plots import evenly
from torchcaps.analysis.traversal import nothing_learned
from torchcaps.data import Dataset, Split
from torchcaps.data.registry import shared_loads
from torchcaps.errors import TorchcapsError
from torchcaps.explorer.questions import about
from torchcaps.explorer.wire import pack
from torchcaps.models import Model
from torchcaps.models.hub import pretrained_folder, pretrained_names
from torchcaps.models.sparse.figures import rank_frequencies
from torchcaps.training.load import data_of, load
from torchcaps.training.recipe import DataSpec
from torchcaps.training.run import Run
from torchcaps.typed import read_object

KEPT = 4
"""Models that are held in memory; the one that was asked for longest ago makes room."""
COUNTED = 200
"""Test images on which ranks are counted."""
NEIGHBORS = 8
"""Nearest training images of an image."""
FITTED = 500
"""Test images that are brought to the size of a model which came without its own."""
RUNS = Path("runs")


class Unknown(TorchcapsError):
    """There is nothing under this name."""


class Computing(Exception):
    """The answer waits for what another thread computes."""


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
        """Source of its numbers, and the numbers."""
        facts = {k: self.record.get(k, "") for k in ("command", "commit", "date", "device")}
        return {**facts, "seed": self.record["recipe"]["seed"], "results": self.record["results"]}


def finished_runs(root: Path = RUNS) -> list[Path]:
    """Folders of finished runs below a folder, the newest first."""
    folders = [p.parent for p in root.glob("*/record.json")]
    folders += [p.parent for p in root.glob("*/*/record.json")]
    return sorted(folders, key=lambda p: (p / "record.json").stat().st_mtime, reverse=True)


class Shelf:
    """Models in the order in which they are given, then those that come with torchcaps.

    sources: runs, folders of saved models, ids of the hub, names of pretrained models. data: images
    for models that come without a run
    """

    def __init__(self, sources: Sequence[str | Path], bundled: bool = True, data: str = "digits"):
        self.books: dict[str, Book] = {}
        self._models: OrderedDict[str, Model] = OrderedDict()
        self._data: dict[tuple[Any, ...], Dataset] = {}
        self._poses: dict[str, TrainingPoses] = {}
        self._lock, self._posing = Lock(), Lock()
        for source in map(str, sources):
            if source in pretrained_names() and not Path(source).exists():
                self._bundled(source)
            elif (Path(source) / "recipe.json").exists():
                self._of_run(Path(source))
            else:
                self._saved(source, data)
        for name in pretrained_names() if bundled else ():
            if name not in self.books:
                self._bundled(name)
        if not self.books:
            raise TorchcapsError("There is no finished run here: torchcaps train demo/capsnet.")

    def _of_run(self, folder: Path) -> None:
        run = Run.open(folder)
        recipe = run.recipe()
        if not run.record_file.exists():
            raise TorchcapsError(f"{folder} is not finished: torchcaps resume {folder}.")
        self._add(folder.name, run.name, str(folder), run.record(), recipe.data)

    def _bundled(self, name: str) -> None:
        record = read_object(pretrained_folder(name) / "record.json")
        spec = DataSpec(name=record["recipe"]["data"]["name"])
        self._add(name, record["recipe"]["row"], name, record, spec)

    def _saved(self, source: str, data: str) -> None:
        """A model without a run: its images are not known, so others are brought to its size."""
        model = load(source)
        name = Path(source).name
        nobody = {"recipe": {"name": "", "row": name, "seed": "", "paper": ""}, "results": []}
        key = self._add(name, name, source, nobody, DataSpec(name=data), model.config.image_shape)
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

    def model(self, key: str) -> Model:
        book = self.book(key)
        with self._lock:
            if key not in self._models:
                self._keep(key, load(book.source))
            self._models.move_to_end(key)
            return self._models[key]

    def _keep(self, key: str, model: Model) -> None:
        self._models[key] = model.cpu().eval().requires_grad_(False)
        while len(self._models) > KEPT:
            self._poses.pop(self._models.popitem(last=False)[0], None)

    def data(self, key: str) -> Dataset:
        """The data that a model was trained on, loaded once for all that share it."""
        book = self.book(key)
        names = self.model(key).class_names if book.fitted else ()
        known = (book.spec, book.fitted, names)
        with self._lock, shared_loads():
            if known not in self._data:
                data = data_of(book.spec)
                if book.fitted:
                    data = fitted(data, book.fitted, names)
                self._data[known] = data
            return self._data[known]

    def about(self, key: str) -> dict[str, Any]:
        """Facts on a model and its data that a page needs to draw its panels."""
        model, data = self.model(key), self.data(key)
        facts = about(model)
        facts["classes"] = facts["classes"] or list(data.classes)
        if not facts["classes"] and "logits" in model.provides:
            facts["classes"] = [str(n) for n in range(model.config.num_classes)]
        if (
            "drawn" in facts["encode"] and not self.book(key).fitted
        ):  # else its own images are not here
            facts["blank"] = nothing_learned(model, data)
        if reason := self._why_no_poses(key, model, data):
            facts["lacks"]["nearest"] = reason.rstrip(".")
        else:
            facts["questions"].append("nearest")
        if "ranks" in facts["questions"]:
            part = data.test[evenly(len(data.test), COUNTED)]
            facts["frequencies"] = rank_frequencies(model, part).tolist()
        return facts

    def _why_no_poses(self, key: str, model: Model, data: Dataset) -> str:
        """Why a model has no nearest training images; empty if it has."""
        if self.book(key).fitted:
            return "It came without its training images"
        return why_no_poses(model, data) if "logits" in model.provides else "It has no classes"

    def nearest(self, key: str, image: Tensor) -> dict[str, Tensor]:
        """Training images whose pose of the predicted class is nearest. image [C,H,W]

        Raises `Computing` while another thread computes poses, which takes long at first.
        """
        model, data = self.model(key), self.data(key)
        if not self._posing.acquire(blocking=False):
            raise Computing
        try:
            if key not in self._poses:
                if reason := self._why_no_poses(key, model, data):
                    raise TorchcapsError(f"{reason.rstrip('.')}.")
                self._poses[key] = TrainingPoses(model, data)
            poses = self._poses[key]
            nearest = poses.nearest(image[None], NEIGHBORS)
        finally:
            self._posing.release()
        rows = nearest.rows[0]
        labels = poses.split.labels[rows]
        return {
            "predicted": nearest.predicted.to(torch.int32),
            "images": (poses.thumbnails(rows) * 255).round().to(torch.uint8),
            "labels": (labels if labels.dim() == 1 else labels[:, 0]).to(torch.int32),
            "similarity": nearest.similarity[0],
        }


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
