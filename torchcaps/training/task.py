"""Base of every task: a module that owns its model and defines what a step minimizes."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from torchcaps.data import Batch, Dataset, Split
from torchcaps.errors import TorchcapsError
from torchcaps.metrics.base import missing_need
from torchcaps.models import Model
from torchcaps.registry import Registry


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """Options of a task; subclasses add fields, and `register_task` names them."""

    kind: ClassVar[str] = ""


class Task(nn.Module):
    """The module that training wraps and compiles: a model with its loss and evaluation.

    Its forward may call any method of the model. State of its own (buffers) is in the checkpoint.
    """

    metric: ClassVar[str] = "loss"
    """The validation number that chooses a model."""
    higher_is_better: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ()
    """Requirements on a model: names of `metrics.base.NEEDS`."""
    example: ClassVar[str] = ""
    """The name of a model that has what it needs."""
    needs_labels: ClassVar[bool] = False
    needs_start: ClassVar[bool] = False
    """True if a run must start from another's weights."""
    mixes_labels: ClassVar[bool] = False
    """True if an image may have shares of two labels."""
    revision: ClassVar[int] = 1
    """Raised when a change of the task's code changes what its recipes measure."""

    def __init__(self, model: Model, config: Any):
        super().__init__()
        self.model, self.config = model, config

    def check(self, data: Dataset, cutmix: float) -> None:
        """Say so where this task cannot be asked of the model and the data."""
        del data
        if cutmix and not self.mixes_labels:
            raise TorchcapsError(
                f"data.cutmix mixes labels, which the task {self.config.kind} does not take."
            )
        if need := missing_need(self.model, None, self.needs):
            raise TorchcapsError(
                f"The task {self.config.kind!r} needs a model with {need}, such as {self.example}; "
                f"this is a {self.model.config.family}."
            )

    def begin(self, data: Dataset) -> None:
        """A run calls this once before its first update, with the weights that it begins with and
        the data on its device; a resumed run before it takes its own weights and state.
        """

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The `loss` of a batch, and its parts; scalars are logged, others go to `after_step`."""
        raise NotImplementedError

    def after_step(self, step: int, parts: dict[str, Tensor]) -> None:
        """Once an update, eager, with the parts averaged over the whole batch and all processes.

        step: how many updates there were before this one
        """

    @torch.no_grad()
    def evaluate(self, split: Split, batch_size: int = 500) -> dict[str, float]:
        """The mean of every scalar part over a split."""
        sums: dict[str, Tensor] = {}
        for batch in split.batches(batch_size):
            for name, value in self(batch).items():
                if value.ndim == 0:
                    sums[name] = sums.get(name, 0) + value.float() * len(batch)
        return {name: float(total) / len(split) for name, total in sums.items()}

    def figures(self, data: Dataset) -> dict[str, Callable[[Path], None]]:
        """Figures of the model for a few rounds of a run: a name, and what saves it as a file."""
        return {}

    @classmethod
    def better(cls, new: float, old: float | None) -> bool:
        """True if a number is better; of equals the later one, which has trained longer."""
        return old is None or (new >= old if cls.higher_is_better else new <= old)


T = TypeVar("T", bound=type[Task])
TASKS = Registry[tuple[type[Task], type[TaskConfig]]]("task", "tasks")


def register_task(name: str, config: type[TaskConfig]) -> Callable[[T], T]:
    """Make a task and its configuration known by a name that recipes can ask for."""

    def add(kind: T) -> T:
        config.kind = name
        TASKS[name] = kind, config
        return kind

    return add


def summaries() -> dict[str, str]:
    """Summary of each task, in a line."""
    modules = {name: sys.modules[kind.__module__] for name, (kind, _) in sorted(TASKS.items())}
    return {name: (module.__doc__ or "").split("\n")[0] for name, module in modules.items()}


def task_config(name: Any) -> type[TaskConfig]:
    return TASKS.find(name)[1]


def task_class(config: TaskConfig) -> type[Task]:
    return TASKS[config.kind][0]


def make_task(model: Model, config: TaskConfig) -> Task:
    return task_class(config)(model, config)
