"""A run is a folder: recipe.json, record.json, metrics.jsonl, checkpoints/, model/, figures/."""

import dataclasses
import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torchcaps.data.source import sha256
from torchcaps.errors import TorchcapsError, require
from torchcaps.train import recipe as recipes
from torchcaps.train.checkpoint import sum_of, write_atomic
from torchcaps.train.recipe import Recipe
from torchcaps.typed import read_object

if TYPE_CHECKING:
    from filelock import FileLock


def folder_name(recipe: str, protocol: str, seed: int) -> str:
    """The name of a run in runs/: its recipe, the protocol where it is not ours, the seed."""
    if not re.fullmatch(r"[\w.-]*", protocol):
        raise TorchcapsError(f"protocol={protocol!r}: letters, digits and dashes.")
    marked = "" if protocol == "ours" else f"-{protocol}"
    return f"{recipe.replace('/', '-')}{marked}-s{seed}"


HERE = ("data.root", "hardware.in_turn", "checkpoint_seconds", "tensorboard", "record")
"""Fields that a run may go on with as this machine wants them; its results are the same."""
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
        if out is not None and out.exists() and not _empty(out):
            raise TorchcapsError(f"{out} is not empty: give --out a new folder, or an empty one.")
        folder, number = out or Path("runs") / stem, 2
        try:
            while out is None and not _make(folder):
                folder, number = Path("runs") / f"{stem}-{number}", number + 1
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TorchcapsError(f"{folder}: cannot be written ({error.strerror}).") from None
        begun = {"run": secrets.token_hex(8), **(start or {})}
        _write_plain(folder, {"start": begun, "recipe": recipes.to_dict(recipe)})
        return Run(folder)

    @staticmethod
    def open(folder: str | Path) -> "Run":
        run = Run(Path(folder))
        if not run.recipe_file.exists():
            raise TorchcapsError(f"{folder}: not a run (it has no recipe.json).")
        return run

    def changed(self, recipe: Recipe) -> tuple[Recipe, list[str]]:
        """A recipe that the run is to go on with, and what makes that another recipe than its own:
        fields of optimiser and schedule may, those of the machine (`HERE`) do not.
        """
        fields = recipes.replaced(recipe, self.recipe())
        theirs = {n: v for n, v in fields.items() if n not in HERE}
        wrong = [n for n in theirs if not n.startswith(("optimiser.", "schedule."))]
        if wrong:
            raise TorchcapsError(f"A run goes on with its own {', '.join(wrong)}: begin another.")
        if theirs and self.record_file.exists():
            raise TorchcapsError(f"{self.folder} is finished: nothing of it can be replaced.")
        recipe = (
            dataclasses.replace(recipe, protocol="modified") if theirs and recipe.paper else recipe
        )
        return recipe, [f"{name}={value}" for name, value in theirs.items()]

    def change(self, recipe: Recipe, changes: list[str]) -> None:
        """Write down what `changed` gave: the recipe and the start say so."""
        begun = self.start()
        if changes:
            begun["modified"] = [*begun.get("modified", []), *changes]
        _write_plain(self.folder, {"start": begun, "recipe": recipes.to_dict(recipe)})

    def start(self) -> dict[str, Any]:
        path = self.folder / "start.json"
        try:
            begun = read_object(path) if path.exists() else {}
        except (OSError, ValueError) as error:
            raise TorchcapsError(f"{path}: damaged ({error}).") from None
        if begun.pop("sum", None) not in (None, sum_of(begun)):  # runs of before have none
            raise TorchcapsError(f"{path}: damaged (its sum has changed).")
        return begun

    def recipe(self) -> Recipe:
        return recipes.load(self.recipe_file)

    def record(self) -> dict[str, Any]:
        try:
            found = read_object(self.record_file)
            if not isinstance(found.get("results"), list) or "recipe" not in found:
                raise ValueError("it has no results")
            return found
        except FileNotFoundError:
            raise TorchcapsError(
                f"{self.folder} is not finished: torchcaps resume {self.folder}."
            ) from None
        except (OSError, ValueError) as error:
            raise TorchcapsError(f"{self.record_file}: damaged ({error}).") from None

    def metrics(self) -> list[dict[str, Any]]:
        if not self.metrics_file.exists():
            return []
        try:
            if not self.metrics_file.is_file():
                raise ValueError("not a plain file")
            lines = self.metrics_file.read_text().splitlines()
            found = [json.loads(line) for line in lines if line]
            if not all(isinstance(line, dict) for line in found):
                raise ValueError("a line is no object")
            return found
        except (OSError, ValueError, RecursionError) as error:
            raise TorchcapsError(f"{self.metrics_file}: damaged ({error}).") from None

    def log(self, values: dict[str, Any], tensorboard: bool = False) -> None:
        """A line of metrics."""
        try:
            with self.metrics_file.open("a") as file:
                file.write(json.dumps(values) + "\n")
        except OSError as error:
            raise TorchcapsError(
                f"{self.metrics_file}: cannot be written ({error.strerror})."
            ) from None
        if tensorboard:
            board = require("torch.utils.tensorboard", "tensorboard")
            with board.SummaryWriter(str(self.folder / "tensorboard")) as writer:
                for name, value in values.items():
                    if name not in ("epoch", "step"):
                        writer.add_scalar(name, value, values["step"])

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

    The claim is a lock that ends with the process; whoever has it may claim again. Of processes
    that train one run together the first claims it.
    """
    if recipe.hardware.processes > 1 and not _first():
        yield  # the first of them claims for all
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


def _first() -> bool:
    """Whether this is the first of processes that train together, as launchers number them."""
    for name in ("RANK", "SLURM_PROCID"):
        if name in os.environ:
            return os.environ[name] == "0"
    return {os.environ.get(name, "0") for name in ("LOCAL_RANK", "NODE_RANK")} == {"0"}


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


def _write_plain(folder: Path, files: dict[str, dict[str, Any]]) -> None:
    try:
        for name, values in files.items():
            text = json.dumps({**values, "sum": sum_of(values)}, indent=2) + "\n"
            write_atomic(folder / f"{name}.json", text.encode())
    except OSError as error:
        raise TorchcapsError(f"{folder}: cannot be written ({error.strerror}).") from None


UNBORN = {"start.json", "start.json.tmp", "recipe.json.tmp"}
"""What a kill leaves of a run that was not yet there: its recipe is written last."""


def _empty(folder: Path) -> bool:
    return folder.is_dir() and {path.name for path in folder.iterdir()} <= UNBORN


def _make(folder: Path) -> bool:
    """Make a folder of one's own; False when somebody has it already."""
    try:
        folder.mkdir(parents=True)
        return True
    except FileExistsError:
        return False
