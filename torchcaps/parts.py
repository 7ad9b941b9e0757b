"""Embed or classify a whole data set in parts: each part is a job, the result a memory map.

    OUT/part-00042.npy     the rows of a part; part-00042.txt: the names of its images
    OUT/part-00042.json    rows and sha256, written last: a part without it is computed again
    OUT/manifest.json      model, data and all parts, when they are complete

The same command continues after a kill, with the same bytes.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from torchcaps.data.records import Records
from torchcaps.data.sets.packed import decoder_of, open_records
from torchcaps.data.source import sha256, sha256_file
from torchcaps.data.stream import Store, StoredImages, prefetch
from torchcaps.errors import TorchcapsError
from torchcaps.metrics.probes.metric import representation
from torchcaps.models.base import Model
from torchcaps.models.predict import class_probabilities
from torchcaps.outputs import check_folder, unfinished
from torchcaps.places import Job, Place, run_jobs
from torchcaps.training.checkpoint import sum_of, write_atomic
from torchcaps.training.hardware import best_device
from torchcaps.training.load import load
from torchcaps.typed import read_object

VERSION = 1
PART_SIZE = 100_000
Kind = Literal["embed", "predict"]


@dataclass(frozen=True)
class Plan:
    """Everything that determines the bytes of the result."""

    kind: Kind
    model: str
    weights: str
    """The sha256 of the model's weights."""
    data: str
    images: int
    identity: str
    """The sha256 of the data set's names, labels and splits."""
    part_size: int
    batch_size: int
    features: str
    top_k: int
    version: int = VERSION

    @property
    def parts(self) -> list[range]:
        starts = range(0, self.images, self.part_size)
        return [range(n, min(n + self.part_size, self.images)) for n in starts]


class Parts:
    """The result of `embed` or `predict` in parts: rows by number, read from the memory map.

    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> from PIL import Image
    >>> folder = Path(mkdtemp())
    >>> (folder / "in").mkdir()
    >>> for n in range(3):
    ...     Image.new("L", (28, 28), 80 * n).save(folder / "in" / f"{n}.png")
    >>> _ = torchcaps.embed("capsnet-small.digits", folder / "in", out=folder / "out")
    >>> vectors = torchcaps.Parts(folder / "out")
    >>> vectors[[2, 0]].shape, vectors.title(2)
    ((2, 160), '2.png')
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        path = self.folder / "manifest.json"
        if not path.exists():
            raise TorchcapsError(
                f"{folder}: no result of embed or predict, or an unfinished one (manifest.json is "
                "missing). Run the same command again."
            )
        manifest = read_object(path)
        if manifest.pop("sum", None) != sum_of(manifest) or manifest.get("version") != VERSION:
            raise TorchcapsError(f"{path}: damaged, or of another version.")
        self.manifest = manifest
        self.classes: tuple[str, ...] = tuple(manifest["classes"])
        self._arrays = [self._open(part) for part in manifest["parts"]]
        self._starts = np.array([part["start"] for part in manifest["parts"]])

    def _open(self, part: dict[str, Any]) -> np.ndarray:
        path = self.folder / part["file"]
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise TorchcapsError(f"{path}: damaged ({error}).") from None
        if len(array) != part["end"] - part["start"]:
            raise TorchcapsError(f"{path}: damaged ({len(array):,} rows).")
        return array

    def __len__(self) -> int:
        return self.manifest["images"]

    @property
    def dtype(self) -> np.dtype:
        return self._arrays[0].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self), *self._arrays[0].shape[1:]

    def __repr__(self) -> str:
        return f"Parts({str(self.folder)!r}, {self.shape}, {len(self._arrays)} parts)"

    def __getitem__(self, rows: int | slice | Any) -> np.ndarray:
        """Rows by number, a slice, or a list of numbers."""
        numbers = np.arange(len(self))[rows]
        places = np.atleast_1d(numbers)
        values = np.empty((len(places), *self.shape[1:]), self.dtype)
        parts = self._starts.searchsorted(places, "right") - 1
        for part in np.unique(parts):
            inside = parts == part
            values[inside] = self._arrays[part][places[inside] - self._starts[part]]
        return values if numbers.ndim else values[0]

    def title(self, row: int) -> str:
        """The name of an image."""
        part = int(self._starts.searchsorted(row, "right")) - 1
        names = (self.folder / self.manifest["parts"][part]["file"]).with_suffix(".txt")
        return names.read_text(encoding="utf-8").split("\n")[row - int(self._starts[part])]

    def verify(self) -> None:
        """Compare the sha256 of every part."""
        for part in self.manifest["parts"]:
            if sha256_file(self.folder / part["file"]) != part["sha256"]:
                raise TorchcapsError(f"{self.folder / part['file']}: its sha256 has changed.")


def weights_digest(model: Model) -> str:
    """The sha256 of all weights."""
    digests = [
        f"{name} {tuple(t.shape)} {sha256(t.detach().cpu().contiguous().numpy().tobytes())}"
        for name, t in sorted(model.state_dict().items())
    ]
    return sha256("\n".join(digests).encode())


def run_parts(
    kind: Kind,
    model: str | Path,
    data: str,
    out: str | Path,
    *,
    features: str = "",
    top_k: int = 5,
    batch_size: int = 64,
    part_size: int = PART_SIZE,
    on: str | Place = "local",
    at_once: int = 0,
    force: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Parts:
    """Embed or classify all images of a data set, in the order of their numbers.

    data: folder:PATH, packed:PATH, hf:USER/SET or webdataset:PATH; on, at_once: where the parts
    are computed, and how many at a time; progress: called with finished and all parts
    """
    if part_size < 1 or batch_size < 1 or top_k < 1:
        raise TorchcapsError("part_size, batch_size and top_k must be at least 1.")
    loaded, records, out = load(model), open_records(data), Path(out)
    if not len(records):
        raise TorchcapsError(f"{data}: it has no images.")
    if kind == "predict" and "logits" not in loaded.provides:
        raise TorchcapsError(f"A {loaded.config.family} has no classes to predict.")
    plan = Plan(
        kind=kind, model=str(model), weights=weights_digest(loaded), data=data,
        images=len(records), identity=records.identity, part_size=part_size,
        batch_size=batch_size, features=features, top_k=top_k if kind == "predict" else 0,
    )  # fmt: skip
    command = f"{kind} {json.dumps(asdict(plan), sort_keys=True)}"
    if (out / "manifest.json").exists() and not force:
        done = Parts(out)
        if done.manifest["plan"] == asdict(plan):
            return done
    check_folder(out, command=command, force=force)
    if force:
        _forget_others(out, plan)
    first = _vectors(plan, loaded, records, range(min(1, len(records))))  # errors come before jobs
    with unfinished(out, command):
        missing = [n for n in range(len(plan.parts)) if not _finished(out, n)]
        total, errors = len(plan.parts), []
        jobs = [
            Job("torchcaps.parts:compute_part",
                {"plan": asdict(plan), "out": str(out), "number": n}, name=f"part {n}",
                log=str(out / "log.txt"))
            for n in missing
        ]  # fmt: skip
        progress(total - len(missing), total)
        for outcome in run_jobs(jobs, on, at_once):
            if outcome.error:
                errors.append(f"{outcome.job.name}: {outcome.error}")
            progress(sum(_finished(out, n) for n in range(total)), total)
        if errors:
            more = f" And {len(errors) - 1} more." if len(errors) > 1 else ""
            raise TorchcapsError(
                f"{out}: {errors[0]}{more} The same command computes the missing parts."
            )
        names = loaded.class_names or tuple(map(str, range(loaded.config.num_classes)))
        manifest = {
            "version": VERSION, "plan": asdict(plan), "images": len(records),
            "shape": list(first.shape[1:]), "classes": list(names) if kind == "predict" else [],
            "parts": [read_object(_path(out, n, "json")) for n in range(total)],
        }  # fmt: skip
        text = json.dumps({**manifest, "sum": sum_of(manifest)}, indent=1)
        write_atomic(out / "manifest.json", text.encode())
    return Parts(out)


def _path(out: Path, number: int, suffix: str) -> Path:
    return out / f"part-{number:05}.{suffix}"


def _finished(out: Path, number: int) -> bool:
    return _path(out, number, "json").exists() and _path(out, number, "npy").exists()


def _forget_others(out: Path, plan: Plan) -> None:
    """Remove the parts of another model or data set, which --force replaces."""
    stored = out / "manifest.json"
    same = stored.exists() and read_object(stored).get("plan") == asdict(plan)
    for path in [] if same else [stored, *out.glob("part-*.json")]:
        path.unlink(missing_ok=True)


@lru_cache(maxsize=1)
def _opened(model: str, weights: str, data: str) -> tuple[Model, Records]:
    """The model and the data, once for the parts that one process computes."""
    loaded = load(model)
    if weights_digest(loaded) != weights:
        raise TorchcapsError(f"{model} has other weights than when the first part was begun.")
    return loaded.to(best_device()).eval(), open_records(data)


def compute_part(plan: dict[str, Any], out: str, number: int, *, console: Console) -> None:
    """Compute one part, unless it is there: a job of a place."""
    chosen, folder = Plan(**plan), Path(out)
    if _finished(folder, number):
        return
    rows = chosen.parts[number]
    model, records = _opened(chosen.model, chosen.weights, chosen.data)
    if len(records) != chosen.images or records.identity != chosen.identity:
        raise TorchcapsError(f"{chosen.data} has other images than when the first part was begun.")
    array, file = _vectors(chosen, model, records, rows), BytesIO()
    np.save(file, array)
    names = "".join(f"{records.title(n)}\n".replace("\r", " ") for n in rows)
    write_atomic(_path(folder, number, "npy"), file.getvalue())
    write_atomic(_path(folder, number, "txt"), names.encode())
    facts = {
        "file": _path(folder, number, "npy").name, "start": rows.start, "end": rows.stop,
        "sha256": sha256(file.getvalue()),
    }  # fmt: skip
    write_atomic(_path(folder, number, "json"), json.dumps(facts).encode())
    console.print(f"part {number}: {len(rows):,} images, process {os.getpid()}")


def _vectors(plan: Plan, model: Model, records: Records, rows: range) -> np.ndarray:
    """The result for some rows: float32 [N,D], or [N,top_k] of class and probability."""
    pieces = []
    for images in _batches(model, records, rows, plan.batch_size):
        with torch.no_grad():
            if plan.kind == "embed":
                pieces.append(representation(model, images, plan.features).cpu().numpy())
            else:
                probabilities = class_probabilities(model.encode(images), model.temperature)
                pieces.append(_classes(probabilities, plan.top_k))
    return np.concatenate(pieces)


def _classes(probabilities: Tensor, top_k: int) -> np.ndarray:
    values, classes = probabilities.topk(min(top_k, probabilities.shape[1]), 1)
    kind = np.dtype([("class", np.int32), ("probability", np.float32)])
    rows = np.empty(values.shape, kind)
    rows["class"], rows["probability"] = classes.cpu().numpy(), values.cpu().numpy()
    return rows


def _batches(model: Model, records: Records, rows: range, size: int) -> Iterator[Tensor]:
    """Images as the model takes them, [B,C,H,W] in [0,1] on its device."""
    channels, height, width = model.config.image_shape
    if channels not in (1, 3):
        raise TorchcapsError(f"This model takes {channels} channels, and image files have 1 or 3.")
    mode = "L" if channels == 1 else "RGB"
    decoder = decoder_of(records, (height, width), mode, model.value_range)
    device = next(model.parameters()).device
    images = StoredImages(Store(records, decoder), torch.arange(rows.start, rows.stop), device)
    for start in range(0, len(rows), size):
        for ahead in (start, start + size):
            prefetch(images, slice(ahead, ahead + size))
        yield images[start : start + size] / 255
