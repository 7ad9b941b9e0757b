"""A run is a folder: recipe.json, record.json, metrics.jsonl, checkpoints/, model/, figures/."""

import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torchcaps.errors import TorchcapsError, require
from torchcaps.train import recipe as recipes
from torchcaps.train.checkpoint import write_atomic
from torchcaps.train.recipe import Recipe

if TYPE_CHECKING:
    from filelock import FileLock


def folder_name(recipe: str, protocol: str, seed: int) -> str:
    """The name of a run in runs/: its recipe, the protocol where it is not ours, the seed."""
    marked = "" if protocol == "ours" else f"-{protocol}"
    return f"{recipe.replace('/', '-')}{marked}-s{seed}"


Status = Literal["finished", "training", "stopped"]


@dataclass(frozen=True)
class Run:
    folder: Path

    @property
    def status(self) -> Status:
        if self.record_file.exists():
            return "finished"
        return "training" if _taken(self.folder) else "stopped"

    @property
    def name(self) -> str:
        """The row of a paper's table that it fills, or else its recipe, and the seed."""
        recipe = self.recipe()
        return f"{recipe.row or recipe.name}, seed {recipe.seed}"

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
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def model(self) -> Path:
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
        """A new folder: `out`, or runs/<recipe>-s<seed>, numbered if that is taken.

        `start` says by which command, commit and device the run was begun; an identity of its own
        is put beside it.
        """
        stem = folder_name(recipe.name, recipe.protocol, recipe.seed)
        if out is not None and (out / "recipe.json").exists():
            raise TorchcapsError(
                f"{out} holds a run already: torchcaps resume {out}, or another --out."
            )
        folder, number = out or Path("runs") / stem, 2
        try:
            while out is None and not _make(folder):
                folder, number = Path("runs") / f"{stem}-{number}", number + 1
            folder.mkdir(parents=True, exist_ok=True)
            begun = {"run": secrets.token_hex(8), **(start or {})}
            for name, values in (("start", begun), ("recipe", recipes.to_dict(recipe))):
                text = json.dumps(values, indent=2) + "\n"
                write_atomic(folder / f"{name}.json", text.encode())
        except OSError as error:
            raise TorchcapsError(f"{folder}: cannot be written ({error.strerror}).") from None
        return Run(folder)

    @staticmethod
    def open(folder: str | Path) -> "Run":
        run = Run(Path(folder))
        if not run.recipe_file.exists():
            raise TorchcapsError(f"{folder}: not a run (it has no recipe.json).")
        return run

    def start(self) -> dict[str, Any]:
        path = self.folder / "start.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def recipe(self) -> Recipe:
        return recipes.load(self.recipe_file)

    def record(self) -> dict[str, Any]:
        try:
            return json.loads(self.record_file.read_text())
        except OSError:
            raise TorchcapsError(
                f"{self.folder} is not finished: torchcaps resume {self.folder}."
            ) from None
        except ValueError as error:
            raise TorchcapsError(f"{self.record_file}: not JSON ({error}).") from None

    def metrics(self) -> list[dict[str, Any]]:
        if not self.metrics_file.exists():
            return []
        return [json.loads(line) for line in self.metrics_file.read_text().splitlines() if line]

    def log(self, values: dict[str, Any], tensorboard: bool = False) -> None:
        """A line of metrics."""
        with self.metrics_file.open("a") as file:
            file.write(json.dumps(values) + "\n")
        if tensorboard:
            board = require("torch.utils.tensorboard", "tensorboard")
            with board.SummaryWriter(str(self.folder / "tensorboard")) as writer:
                for name, value in values.items():
                    if name not in ("epoch", "step"):
                        writer.add_scalar(name, value, values["step"])

    def metrics_bytes(self) -> int:
        return self.metrics_file.stat().st_size if self.metrics_file.exists() else 0

    def cut_metrics(self, length: int) -> None:
        if self.metrics_bytes() > length:
            os.truncate(self.metrics_file, length)

    @staticmethod
    def list(root: str | Path = "runs") -> "Runs":
        """The runs in a folder and in its subfolders, those begun last first."""
        found = [path.parent for path in Path(root).glob("*/recipe.json")]
        found += [path.parent for path in Path(root).glob("*/*/recipe.json")]
        begun = {folder: (folder / "recipe.json").stat().st_mtime for folder in found}
        return [Run(folder) for folder in sorted(found, key=lambda f: begun[f], reverse=True)]


Runs = list[Run]


def by_name(folders: Iterable[str | Path]) -> dict[str, Run]:
    """Runs by the row of a paper's table, or else the recipe; with the seed, and then with the
    folder's name, where that is not enough.
    """
    opened = [Run.open(folder) for folder in folders]
    recipes = [run.recipe() for run in opened]
    names = [recipe.row or recipe.name for recipe in recipes]
    seeds = [f", seed {recipe.seed}" for recipe in recipes]
    for more in (seeds, [f" ({run.folder.name})" for run in opened]):
        doubled = {name for name in names if names.count(name) > 1}
        names = [n + m if n in doubled else n for n, m in zip(names, more, strict=True)]
    return dict(zip(names, opened, strict=True))


@contextmanager
def claimed(
    folder: Path, recipe: Recipe, waiting: Callable[[str], None] | None = None
) -> Iterator[None]:
    """One process at a time trains a folder: another is refused, or says so to `waiting` and waits.

    The claim is a lock that ends with the process; whoever has it may claim again. Processes that
    train one run together claim nothing, since they would wait for each other.
    """
    if recipe.hardware.processes > 1:
        yield
        return
    from filelock import Timeout

    place, lock = folder.resolve(), _lock(folder)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if waiting is None:
                raise TorchcapsError(f"{folder}: another process is training it.") from None
            waiting(f"Another process is training {folder}; waiting for it.")
            lock.acquire()
    except OSError as error:  # Timeout is one too, and is dealt with above
        raise TorchcapsError(f"{folder}: cannot be claimed ({error.strerror}).") from None
    try:
        yield
    finally:
        lock.release()


def _lock(folder: Path) -> "FileLock":
    from filelock import FileLock

    place = folder.resolve()
    return FileLock(place.parent / f".{place.name}.lock", is_singleton=True)


def _taken(folder: Path) -> bool:
    """Whether a process is training a folder now."""
    lock = _lock(folder)
    try:
        lock.acquire(timeout=0)
    except OSError:  # filelock's Timeout is one
        return True
    lock.release()
    return False


def _make(folder: Path) -> bool:
    """Make a folder of one's own; False when somebody has it already."""
    try:
        folder.mkdir(parents=True)
        return True
    except FileExistsError:
        return False
