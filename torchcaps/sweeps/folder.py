"""A sweep is a folder: sweep.json, a run and a JSON file for each trial, and the final runs."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from torchcaps.errors import TorchcapsError, UsageError
from torchcaps.sweeps.space import Space, Values, as_json, from_json, with_values
from torchcaps.training.checkpoint import sum_of, write_atomic
from torchcaps.training.recipe import Recipe, from_dict, to_dict
from torchcaps.training.run import Run
from torchcaps.training.task import task_class
from torchcaps.typed import read_object

SWEEPS = Path("runs/sweeps")
VERSION = 1
EARLY, ALL = "this trial fell behind\n", "the sweep was stopped\n"
"""Contents of a `stop` file: the trial has ended, or the sweep will be resumed."""
ENDED = ("finished", "stopped early", "failed")


def _write(path: Path, values: dict[str, Any]) -> None:
    try:
        text = json.dumps({**values, "sum": sum_of(values)}, indent=2) + "\n"
        write_atomic(path, text.encode())
    except OSError as error:
        raise TorchcapsError(f"{path}: cannot be written ({error.strerror}).") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        values = read_object(path)
    except (OSError, ValueError) as error:
        raise TorchcapsError(f"{path}: damaged ({error}).") from None
    if values.pop("sum", None) != sum_of(values):
        raise TorchcapsError(f"{path}: damaged (its sum has changed).")
    return values


@dataclass(frozen=True)
class Trial:
    """A trial: its values, and its best validation value once it has ended."""

    folder: Path
    number: int
    values: Values
    state: str = "running"
    """running, lost, finished, stopped early or failed"""
    value: float | None = None
    epoch: int | None = None
    """The epoch of the best validation value, from 1."""
    seconds: float = 0.0
    error: str = ""

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def run(self) -> Run:
        return Run(self.folder)

    @property
    def recipe(self) -> Recipe:
        return self.run.recipe()

    @property
    def file(self) -> Path:
        return self.folder.with_suffix(".json")

    def write(self) -> None:
        values = asdict(self)
        _write(self.file, {k: v for k, v in values.items() if k != "folder"})

    @staticmethod
    def read(folder: Path) -> "Trial":
        return Trial(folder=folder, **_read(folder.with_suffix(".json")))


def objective(recipe: Recipe) -> str:
    """The name in metrics.jsonl of the number that trials are compared by."""
    by = "loss" if recipe.choose == "loss" else task_class(recipe.task).metric
    return f"{recipe.stop_on}_{by}"


def better(recipe: Recipe, new: float, old: float | None) -> bool:
    """True if a validation value is better than another."""
    if recipe.choose == "loss":
        return old is None or new <= old
    return task_class(recipe.task).better(new, old)


def best_of(recipe: Recipe, lines: Sequence[dict[str, Any]]) -> tuple[float | None, int | None]:
    """The best validation value of a run and its epoch, as the run itself chooses; the last one
    where the recipe chooses the last epoch.
    """
    value, epoch, name = None, None, objective(recipe)
    for line in lines:
        new = line.get(name)
        if (
            new is not None
            and new == new
            and (recipe.choose == "last" or better(recipe, new, value))
        ):
            value, epoch = new, line["epoch"] + 1
    return value, epoch


@dataclass(frozen=True)
class Settings:
    """Settings of a sweep, as in sweep.json."""

    recipe: Recipe
    space: Space
    search: str
    trials: int
    seeds: int = 3
    """Runs of the best trial with other seeds."""
    stop_early: bool = False
    hours: float = 0.0
    """Device hours after which no trial starts. 0: no limit."""

    def to_json(self) -> dict[str, Any]:
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        space = as_json(self.space)
        return {"version": VERSION, **plain, "recipe": to_dict(self.recipe), "space": space}

    @staticmethod
    def from_json(values: dict[str, Any], source: str) -> "Settings":
        if values.get("version") != VERSION:
            raise TorchcapsError(f"{source}: a sweep of version {values.get('version')}.")
        values = {name: value for name, value in values.items() if name != "version"}
        recipe, space = from_dict(values.pop("recipe"), source), from_json(values.pop("space"))
        return Settings(recipe=recipe, space=space, **values)

    def changes(self, other: "Settings") -> list[str]:
        """Settings that identify a sweep: all but its length."""
        names = ("recipe", "space", "search", "stop_early", "seeds")
        own, others = (json.loads(json.dumps(each.to_json())) for each in (self, other))
        return [name for name in names if own[name] != others[name]]


@dataclass(frozen=True)
class Sweep:
    """A sweep and its folder: `sweep.trials`, `sweep.best`, `sweep.final`."""

    folder: Path
    settings: Settings = field(repr=False)

    @staticmethod
    def open(name: str | Path) -> "Sweep":
        """A sweep by its folder, or by its name in runs/sweeps."""
        folder = Path(name)
        if not (folder / "sweep.json").exists():
            folder = SWEEPS / name
        if not (folder / "sweep.json").exists():
            known = ", ".join(sorted(p.parent.name for p in SWEEPS.glob("*/sweep.json")))
            raise UsageError(f"{name}: not a sweep. " + (f"There are: {known}." if known else ""))
        path = folder / "sweep.json"
        return Sweep(folder, Settings.from_json(_read(path), str(path)))

    @staticmethod
    def create(folder: Path, settings: Settings) -> "Sweep":
        folder.mkdir(parents=True, exist_ok=True)
        sweep = Sweep(folder, settings)
        sweep.write()
        return sweep

    def write(self) -> None:
        _write(self.folder / "sweep.json", self.settings.to_json())

    def with_settings(self, **changed: Any) -> "Sweep":
        return replace(self, settings=replace(self.settings, **changed))

    @property
    def stop_file(self) -> Path:
        return self.folder / "stop"

    def trial_folder(self, number: int) -> Path:
        return self.folder / f"t{number:04}"

    @property
    def trials(self) -> list[Trial]:
        """Trials that were given out, by number."""
        files = sorted(self.folder.glob("t[0-9]*.json"), key=lambda path: int(path.stem[1:]))
        return [Trial.read(path.with_suffix("")) for path in files]

    @property
    def ranked(self) -> list[Trial]:
        """Trials with a value that finished or were stopped early, the best first."""
        trials = [(t.value, t) for t in self.trials if t.ended and t.state != "failed"]
        higher = better(self.settings.recipe, 1.0, 0.0)
        valued = [(value, trial) for value, trial in trials if value is not None]
        return [t for _, t in sorted(valued, key=lambda pair: pair[0], reverse=higher)]

    @property
    def best(self) -> Trial | None:
        """The trial with the best validation value; of equals the first."""
        return next(iter(self.ranked), None)

    def trial_recipe(self, values: Values) -> Recipe:
        """The recipe of a trial: no row of a paper's table, and not evaluated on the test split."""
        recipe = with_values(self.settings.recipe, values)
        unnamed = {"paper": "", "table": "", "row": "", "record": False}
        return replace(recipe, **unnamed, metrics=(), skip_test=True)

    def final_recipe(self, trial: Trial, seed: int) -> Recipe:
        return replace(with_values(self.settings.recipe, trial.values), seed=seed, record=False)

    def final_seeds(self, trial: Trial) -> list[int]:
        """Seeds that the trial did not have."""
        used = trial.values.get("seed", self.settings.recipe.seed)
        return [used + number for number in range(1, self.settings.seeds + 1)]

    def final_folder(self, trial: Trial, seed: int) -> Path:
        return self.folder / f"best-t{trial.number:04}-s{seed}"

    @property
    def final(self) -> list[Run]:
        """The finished runs of the best trial with other seeds."""
        if self.best is None:
            return []
        folders = [self.final_folder(self.best, seed) for seed in self.final_seeds(self.best)]
        return [Run(folder) for folder in folders if Run(folder).finished]

    @property
    def seconds(self) -> float:
        """Device seconds of all trials."""
        return sum(trial.seconds for trial in self.trials)
