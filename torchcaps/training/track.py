"""Experiment trackers beside metrics.jsonl: TensorBoard, Weights & Biases, MLflow.

They get the lines of metrics.jsonl. A tracker that fails is reported once and left out: it never
ends a run. A resumed run continues the run of its tracker.
"""

from collections.abc import Callable
from typing import Any, Protocol

from torchcaps.errors import require
from torchcaps.training.recipe import Recipe, to_dict
from torchcaps.training.run import Run

PROJECT = "torchcaps"
"""Project of Weights & Biases and experiment of MLflow, unless their variables name another."""


class Tracker(Protocol):
    last: int
    """Step of the last line that the tracker has."""

    def log(self, values: dict[str, float], step: int) -> None: ...

    def close(self) -> None: ...


def _last_step(run: Run) -> int:
    return run.metrics[-1]["step"] if run.metrics else -1


class TensorBoard:
    """Events in the run's folder tensorboard/."""

    def __init__(self, run: Run, recipe: Recipe):
        del recipe
        board = require("torch.utils.tensorboard", "tensorboard")
        self.last = _last_step(run)
        purge = self.last + 1 if self.last >= 0 else None  # lines after the checkpoint come again
        self.writer = board.SummaryWriter(str(run.folder / "tensorboard"), purge_step=purge)

    def log(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class WandB:
    """A run of Weights & Biases with the identity of this run; WANDB_MODE=offline needs no net."""

    def __init__(self, run: Run, recipe: Recipe):
        wandb = require("wandb", "wandb")
        self.last = _last_step(run)
        self.run = wandb.init(
            project=None if _named("WANDB_PROJECT") else PROJECT, name=run.name,
            id=run.start().get("run"), resume="allow", dir=str(run.folder),
            config=to_dict(recipe), settings=wandb.Settings(silent=True),
        )  # fmt: skip

    def log(self, values: dict[str, float], step: int) -> None:
        self.run.log(values, step=step)

    def close(self) -> None:
        self.run.finish()


class MLflow:
    """A run of MLflow, at MLFLOW_TRACKING_URI, with the identity of this run as a tag."""

    def __init__(self, run: Run, recipe: Recipe):
        mlflow = require("mlflow", "mlflow")
        if not _named("MLFLOW_EXPERIMENT_NAME"):
            mlflow.set_experiment(PROJECT)
        self.client, identity = mlflow.MlflowClient(), run.start().get("run", "")
        name = _named("MLFLOW_EXPERIMENT_NAME") or PROJECT
        experiment = self.client.get_experiment_by_name(name).experiment_id
        known = self.client.search_runs([experiment], f"tags.torchcaps = '{identity}'")
        if known:
            self.id = known[0].info.run_id
        else:
            tags = {"torchcaps": identity}
            self.id = self.client.create_run(experiment, tags=tags, run_name=run.name).info.run_id
            for field, value in _flat(to_dict(recipe)).items():
                self.client.log_param(self.id, field, str(value)[:500])
        history = self.client.get_metric_history(self.id, "train_loss")
        self.last = max((metric.step for metric in history), default=-1)
        self.client.update_run(self.id, status="RUNNING")

    def log(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self.client.log_metric(self.id, name, value, step=step)

    def close(self) -> None:
        self.client.set_terminated(self.id)


def _named(variable: str) -> str:
    import os

    return os.environ.get(variable, "")


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        inner = value if isinstance(value, dict) else {}
        flat |= {f"{name}.{key}": v for key, v in inner.items()} if inner else {name: value}
    return flat


TRACKERS: dict[str, tuple[str, Callable[[Run, Recipe], Tracker]]] = {
    "tensorboard": ("torch.utils.tensorboard", TensorBoard),
    "wandb": ("wandb", WandB),
    "mlflow": ("mlflow", MLflow),
}
"""By name: the package, which the extra of this name installs, and the tracker."""


class Trackers:
    """The trackers that a recipe names."""

    def __init__(
        self, run: Run, recipe: Recipe, report: Callable[[str], object], chief: bool = True
    ):
        """chief: of processes that train together, the one that logs"""
        self.open: dict[str, Tracker] = {}
        self.report = report
        for name in dict.fromkeys(recipe.track if chief else ()):
            package, kind = TRACKERS[name]
            require(package, name)  # an extra that is missing is an error before the training

            def begin(name: str = name, kind: Callable[..., Tracker] = kind) -> None:
                tracker = self.open[name] = kind(run, recipe)
                for line in run.metrics:  # what it has missed
                    if line["step"] > tracker.last:
                        tracker.log(*_numbers(line))

            self._attempt(name, begin)

    def _attempt(self, name: str, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:  # a network, a full disk, a service: the run continues
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            self.open.pop(name, None)
            self.report(f"The tracker {name} failed and is left out ({reason}).")

    def log(self, line: dict[str, Any]) -> None:
        """Pass a line of metrics on: a callback of the loop."""
        for name, tracker in list(self.open.items()):
            self._attempt(name, lambda tracker=tracker: tracker.log(*_numbers(line)))

    def close(self) -> None:
        for name, tracker in list(self.open.items()):
            self._attempt(name, tracker.close)
        self.open = {}


def _numbers(line: dict[str, Any]) -> tuple[dict[str, float], int]:
    """The numbers of a line of metrics, and its step."""
    numbers = {n: float(v) for n, v in line.items() if n != "step" and isinstance(v, int | float)}
    return numbers, int(line["step"])
