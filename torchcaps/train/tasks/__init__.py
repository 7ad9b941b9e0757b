"""Tasks: what a step minimises, what an evaluation counts, which number chooses a model."""

from torchcaps.train.tasks.base import (
    Task,
    TaskConfig,
    make_task,
    register_task,
    summaries,
    task_class,
    task_config,
    tasks,
)
from torchcaps.train.tasks.classify import Classify
from torchcaps.train.tasks.distil import Distil
from torchcaps.train.tasks.elbo import Elbo
from torchcaps.train.tasks.masked import Masked
from torchcaps.train.tasks.reconstruct import Reconstruct
from torchcaps.train.tasks.sparse import Sparse

__all__ = [
    "Classify",
    "Distil",
    "Elbo",
    "Masked",
    "Reconstruct",
    "Sparse",
    "Task",
    "TaskConfig",
    "make_task",
    "register_task",
    "summaries",
    "task_class",
    "task_config",
    "tasks",
]
