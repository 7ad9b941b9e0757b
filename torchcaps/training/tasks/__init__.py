"""Tasks: what a step minimises, what an evaluation counts, which number chooses a model."""

from torchcaps.models.generative import inference as _inference  # noqa: F401  registers metrics
from torchcaps.models.generative import metrics as _metrics  # noqa: F401
from torchcaps.models.generative.task import Elbo
from torchcaps.models.mcae.task import Masked
from torchcaps.models.sparse.task import Sparse
from torchcaps.training.task import (
    TASKS,
    Task,
    TaskConfig,
    make_task,
    register_task,
    summaries,
    task_class,
    task_config,
)
from torchcaps.training.tasks.classify import Classify
from torchcaps.training.tasks.distil import Distil
from torchcaps.training.tasks.equivariant import Equivariant
from torchcaps.training.tasks.reconstruct import Reconstruct

__all__ = [
    "Classify",
    "Distil",
    "Elbo",
    "Equivariant",
    "Masked",
    "Reconstruct",
    "Sparse",
    "TASKS",
    "Task",
    "TaskConfig",
    "make_task",
    "register_task",
    "summaries",
    "task_class",
    "task_config",
]
