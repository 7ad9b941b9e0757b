"""A run is a folder: recipe.json, record.json, metrics.jsonl, checkpoints/, model/, figures/."""

import json
import os
import re
import secrets
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torchcaps import plugins
from torchcaps.data.source import sha256
from torchcaps.errors import TorchcapsError, UsageError, writing
from torchcaps.outputs import run_around
from torchcaps.training import recipe as recipes
from torchcaps.training.checkpoint import sum_of, write_atomic
from torchcaps.training.recipe import Recipe
from torchcaps.typed import read_object

if TYPE_CHECKING:
    from filelock import FileLock

    from torchcaps.data import Dataset
    from torchcaps.models import Model

RUNS = Path("runs")
Status = Literal["finished", "training", "stopped"]


def run_folder(recipe: str, protocol: str, seed: int) -> Path:
    """The usual folder of a run: its recipe, the protocol if it is not ours, the seed."""
    if not re.fullmatch(r"[\w.-]*", protocol):
        raise TorchcapsError(f"protocol={protocol!r}: letters, digits and dashes.")
    marked = "" if protocol == "ours" else f"-{protocol}"
    return RUNS / f"{recipe.replace('/', '-')}{marked}-s{seed}"


def check_out(out: Path | None) -> None:
    """Raise unless a new run may be made in this folder; called before data is loaded, too."""
    around = run_around(out or RUNS)
    if out is not None and around and out.exists() and around.samefile(out):
        raise TorchcapsError(
            f"{out} already holds a run: torchcaps resume {out}, or choose another --out."
        )
    if around is not None:
        raise TorchcapsError(f"{out or RUNS} lies in the run {around}: choose another --out.")
    if out is not None and out.exists() and not _empty(out):
        raise TorchcapsError(f"{out} is not empty: give --out a new or empty folder.")


@dataclass(frozen=True)
class Run:
    """One training and its folder: `run.metrics`, `run.results`, `run.model`.

    >>> images, labels = torch.rand(60, 1, 28, 28), torch.arange(60) % 3
    >>> run = torchcaps.fit("convnet-avg-small", (images, labels), epochs=1, quiet=True)
    >>> len(run.metrics), run.results[0]["split"]
    (1, 'test')
    """

    folder: Path
    data: "Dataset | None" = field(default=None, repr=False, compare=False)
    """The data of a run that was trained on data in memory, as long as the run is open."""

    @property
    def finished(self) -> bool:
        return self.record_file.exists()

    @property
    def status(self) -> Status:
        if self.finished:
            return "finished"
        return "training" if _locked(self.folder) else "stopped"

    @property
    def name(self) -> str:
        """The row of a paper's table that it fills, or else its recipe, and the seed."""
        recipe = self.recipe()
        return f"{recipe.row or recipe.name}, seed {recipe.seed}"

    @property
    def model(self) -> "Model":
        """The model with the chosen weights; of a run in progress, those chosen so far."""
        from torchcaps.training.load import load

        return load(self.folder)

    @property
    def results(self) -> list[dict[str, Any]]:
        """The numbers of the final evaluation: data, split, metric, value."""
        return self.record()["results"]

    @property
    def accuracy(self) -> float | None:
        """Test accuracy on the run's own data, if it is finished and classifies."""
        if not self.finished:
            return None
        name = self.recipe().data.name
        lines = (r for r in self.results if r["metric"] == "accuracy" and r["split"] == "test")
        return next((r["value"] for r in lines if r["data"] == name), None)

    def __repr__(self) -> str:
        try:
            accuracy = self.accuracy
            more = f", test accuracy {accuracy:.4f}" if accuracy is not None else ""
            return f"Run('{self.folder}', {self.name}, {self.status}{more})"
        except TorchcapsError as error:
            return f"Run('{self.folder}', {error})"

    @property
    def recipe_file(self) -> Path:
        return self.folder / "recipe.json"

    @property
    def record_file(self) -> Path:
        return self.folder / "record.json"

    @property
    def metrics_file(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def stop_file(self) -> Path:
        """Training ends with a checkpoint after the validation that finds this file; a resume
        removes it."""
        return self.folder / "stop"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def model_folder(self) -> Path:
        """The chosen weights, as `save_pretrained` writes them."""
        return self.folder / "model"

    @property
    def encodings(self) -> Path:
        """Representations that probes have learned from."""
        return self.folder / "encodings"

    @property
    def figures(self) -> Path:
        return self.folder / "figures"

    @staticmethod
    def create(
        recipe: Recipe, out: Path | None = None, start: dict[str, Any] | None = None
    ) -> "Run":
        """Make the folder: `out`, or runs/<recipe>-s<seed>, numbered if that exists.

        start: command, commit and device of the start; a random identity is added
        """
        check_out(out)
        usual = run_folder(recipe.name, recipe.protocol, recipe.seed)
        folder, number = out or usual, 2
        with writing(folder):
            while out is None and not _make(folder):
                folder, number = usual.with_name(f"{usual.name}-{number}"), number + 1
            folder.mkdir(parents=True, exist_ok=True)
        start = {"run": secrets.token_hex(8), **(start or {})}
        _write_json(folder, {"start": start, "recipe": recipes.to_dict(recipe)})
        return Run(folder)

    @staticmethod
    def open(folder: str | Path) -> "Run":
        run = Run(Path(folder))
        if not run.recipe_file.exists():
            raise TorchcapsError(f"{folder}: not a run (it has no recipe.json).")
        return run

    def replace_recipe(self, recipe: Recipe, changes: list[str]) -> None:
        """Write a changed recipe; the start lists the changes, as field=value."""
        start = self.start()
        if changes:
            start["modified"] = [*start.get("modified", []), *changes]
        _write_json(self.folder, {"start": start, "recipe": recipes.to_dict(recipe)})

    def start(self) -> dict[str, Any]:
        path = self.folder / "start.json"
        start = read_object(path) if path.exists() else {}
        if start.pop("sum", None) not in (None, sum_of(start)):
            raise TorchcapsError(f"{path}: damaged (its sum has changed).")
        return start

    def recipe(self) -> Recipe:
        try:
            return recipes.load(self.recipe_file)
        except UsageError:  # an unknown model family may be a plug-in's
            self.require_plugins()
            raise

    def require_plugins(self) -> None:
        """Raise unless the plug-ins that the run was trained with are loaded."""
        loaded = plugins.loaded()
        stored = self.start().get("plugins", {})
        missing = [n for n, s in stored.items() if n not in loaded and s not in loaded.values()]
        if missing:
            options = " ".join(f"--plugin {name}" for name in missing)
            raise TorchcapsError(
                f"{self.folder} was trained with plug-ins: add {options} (in Python: "
                "torchcaps.plugins.load)."
            )
        for name in (n for n, s in stored.items() if loaded.get(n, s) != s):
            warnings.warn(f"{name} has changed since {self.folder} was trained.", stacklevel=2)

    def record(self) -> dict[str, Any]:
        if not self.finished:
            raise TorchcapsError(f"{self.folder} is not finished: torchcaps resume {self.folder}.")
        record = read_object(self.record_file)
        if not isinstance(record.get("results"), list) or "recipe" not in record:
            raise TorchcapsError(f"{self.record_file}: damaged (it has no results).")
        return record

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Losses and validation numbers, one dict per epoch."""
        if not self.metrics_file.exists():
            return []
        try:
            if not self.metrics_file.is_file():
                raise ValueError("not a plain file")
            lines = self.metrics_file.read_text().splitlines()
            rows = [json.loads(line) for line in lines if line]
            if not all(isinstance(row, dict) for row in rows):
                raise ValueError("a line is not an object")
            return rows
        except (OSError, ValueError, RecursionError) as error:
            raise TorchcapsError(f"{self.metrics_file}: damaged ({error}).") from None

    def log(self, values: dict[str, Any]) -> None:
        """Append a line of metrics."""
        with writing(self.metrics_file), self.metrics_file.open("a") as file:
            file.write(json.dumps(values) + "\n")

    def metrics_bytes(self) -> int:
        return self.metrics_file.stat().st_size if self.metrics_file.exists() else 0

    def metrics_sum(self, length: int) -> str:
        """The sha256 of so many bytes of metrics.jsonl; empty for none."""
        if not length or not self.metrics_file.exists():
            return ""
        return sha256(self.metrics_file.read_bytes()[:length])

    def cut_metrics(self, length: int) -> None:
        if self.metrics_bytes() > length:
            os.truncate(self.metrics_file, length)

    @staticmethod
    def list(root: str | Path = RUNS) -> "Runs":
        """The runs in a folder and in its subfolders, the latest start first."""
        files = [*Path(root).glob("*/recipe.json"), *Path(root).glob("*/*/recipe.json")]
        files.sort(key=lambda file: file.stat().st_mtime, reverse=True)
        return [Run(file.parent) for file in files]


Runs = list[Run]


def by_name(runs: Iterable[Run | str | Path]) -> dict[str, Run]:
    """Runs by the row of a paper's table, or else the recipe; with the seed, and then with the
    folder's name, where that is not enough.
    """
    opened = [run if isinstance(run, Run) else Run.open(run) for run in runs]
    recipes = [run.recipe() for run in opened]
    names = [recipe.row or recipe.name for recipe in recipes]
    seeds = [f", seed {recipe.seed}" for recipe in recipes]
    for more in (seeds, [f" ({run.folder.name})" for run in opened]):
        repeated = {name for name in names if names.count(name) > 1}
        names = [n + m if n in repeated else n for n, m in zip(names, more, strict=True)]
    return dict(zip(names, opened, strict=True))


@contextmanager
def claimed(
    folder: Path, recipe: Recipe, report: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Let one process at a time train a folder; another gets an error, or reports it and waits.

    The claim is a lock that ends with the process; its holder may claim again. Of processes that
    train one run together the first claims it.
    """
    if recipe.hardware.processes > 1 and not first_process():
        yield  # the first of them claims for all
        return
    from filelock import Timeout

    place, lock = folder.resolve(), _lock(folder)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if report is None:
                raise TorchcapsError(f"{folder}: another process is training it.") from None
            report(f"Another process is training {folder}; waiting for it.")
            lock.acquire()
    except OSError as error:  # Timeout is one too, and was handled above
        raise TorchcapsError(f"{folder}: cannot be claimed ({error.strerror}).") from None
    try:
        yield
    finally:
        lock.release()


def first_process() -> bool:
    """True for the first of processes that train together, as launchers number them."""
    for name in ("RANK", "SLURM_PROCID"):
        if name in os.environ:
            return os.environ[name] == "0"
    return {os.environ.get(name, "0") for name in ("LOCAL_RANK", "NODE_RANK")} == {"0"}


def _lock(folder: Path) -> "FileLock":
    from filelock import FileLock

    place = folder.resolve()
    return FileLock(place.parent / f".{place.name}.lock", is_singleton=True)


def _locked(folder: Path) -> bool:
    """True if a process is training a folder now."""
    lock = _lock(folder)
    try:
        lock.acquire(timeout=0)
    except OSError:  # filelock's Timeout is one
        return True
    lock.release()
    return False


def _write_json(folder: Path, files: dict[str, dict[str, Any]]) -> None:
    with writing(folder):
        for name, values in files.items():
            text = json.dumps({**values, "sum": sum_of(values)}, indent=2) + "\n"
            write_atomic(folder / f"{name}.json", text.encode())


UNFINISHED_FILES = {"start.json", "start.json.tmp", "recipe.json.tmp"}
"""Files that a kill leaves of a run before its recipe, which is written last."""


def _empty(folder: Path) -> bool:
    """True if a folder has no files but those that a killed start of a run left there."""
    if not folder.is_dir() or {path.name for path in folder.iterdir()} - UNFINISHED_FILES:
        return False
    if not (folder / "start.json").exists():
        return True
    try:  # another program's start.json is a file of the user
        start = read_object(folder / "start.json")
    except TorchcapsError:
        return False
    return start.pop("sum", None) == sum_of(start)


def _make(folder: Path) -> bool:
    """Make a new folder; False if it exists."""
    try:
        folder.mkdir(parents=True)
        return True
    except FileExistsError:
        return False
