"""Searches: which values the next trial has."""

from pathlib import Path
from typing import Any, Literal, Protocol

from torchcaps.errors import UsageError, require
from torchcaps.sweeps.space import Range, Space, Values, grid, is_grid, sample

Kind = Literal["grid", "random", "tpe"]


class Search(Protocol):
    def ask(self, number: int) -> Values: ...

    def tell(self, number: int, value: float | None) -> None:
        """value: the trial's best validation value; None if it failed"""
        ...


class Grid:
    """Every combination of listed values, in order."""

    def __init__(self, space: Space):
        self.values = list(grid(space))

    def ask(self, number: int) -> Values:
        return self.values[number]

    def tell(self, number: int, value: float | None) -> None:
        del number, value


class Random:
    """Independent random values."""

    def __init__(self, space: Space, seed: int):
        self.space, self.seed = space, seed

    def ask(self, number: int) -> Values:
        return sample(self.space, self.seed, number)

    def tell(self, number: int, value: float | None) -> None:
        del number, value


class Tpe:
    """Optuna's tree-structured Parzen estimator, asked in the driver alone.

    The study is a journal in the sweep's folder, which optuna-dashboard reads.
    """

    def __init__(self, space: Space, seed: int, folder: Path, maximize: bool):
        self.optuna = require("optuna", "search")
        self.optuna.logging.set_verbosity(self.optuna.logging.WARNING)
        journal = self.optuna.storages.journal.JournalFileBackend(str(folder / "study.journal"))
        self.study = self.optuna.create_study(
            storage=self.optuna.storages.JournalStorage(journal), study_name=folder.name,
            direction="maximize" if maximize else "minimize", load_if_exists=True,
        )  # fmt: skip
        self.space, self.seed = space, seed
        self.labels = {
            field: {str(value): value for value in values}
            for field, values in space.items()
            if not isinstance(values, Range)
        }

    def ask(self, number: int) -> Values:
        """Those of the journal for a trial that was asked for before a kill."""
        trials = self.study.get_trials(deepcopy=False)
        if number < len(trials):
            return self._values(trials[number].params)
        # new for each trial, so that its values follow from the seed, its number and the results
        self.study.sampler = self.optuna.samplers.TPESampler(seed=self.seed * 100_003 + number)
        trial = self.study.ask({field: self._distribution(field) for field in self.space})
        return self._values(trial.params)

    def tell(self, number: int, value: float | None) -> None:
        if self.study.get_trials(deepcopy=False)[number].state.is_finished():
            return
        state = self.optuna.trial.TrialState
        if value is None:
            self.study.tell(number, state=state.FAIL)
        else:
            self.study.tell(number, value)

    def _distribution(self, field: str) -> Any:
        distributions, values = self.optuna.distributions, self.space[field]
        if not isinstance(values, Range):
            return distributions.CategoricalDistribution(list(self.labels[field]))
        if values.whole:
            return distributions.IntDistribution(int(values.low), int(values.high), values.log)
        return distributions.FloatDistribution(values.low, values.high, values.log)

    def _values(self, parameters: dict[str, Any]) -> Values:
        return {
            field: self.labels[field][value] if field in self.labels else value
            for field, value in parameters.items()
        }


def check_search(kind: Kind, space: Space, trials: int) -> None:
    """Raise unless the search suits the space; tpe needs its extra only when it runs."""
    if kind == "grid" and not is_grid(space):
        raise UsageError("--search grid needs lists of values; use random or tpe for ranges.")
    if kind == "grid" and trials != (size := len(list(grid(space)))):
        raise UsageError(f"The grid has {size} trials: leave --trials out, or use --search random.")


def make_search(kind: Kind, space: Space, seed: int, folder: Path, maximize: bool) -> Search:
    if kind == "grid":
        return Grid(space)
    return Random(space, seed) if kind == "random" else Tpe(space, seed, folder, maximize)
