"""Settings shared by the tables: training without labels, and probes."""

from typing import Any, NamedTuple

from torchcaps.models.registry import model_config
from torchcaps.training.recipe import DataSpec, HardwareSpec, OptimizerSpec, Recipe, ScheduleSpec
from torchcaps.training.tasks import Elbo, TaskConfig

METRIC = "logistic_accuracy"
CAPSULES = OptimizerSpec(kind="adam", lr=1e-3, clip=1000.0, rates=("process=10",))
PLAIN = OptimizerSpec(kind="adam", lr=1e-3)
AUTHORS = OptimizerSpec(kind="rmsprop", lr=1e-4, beta=0.9, eps=7.8e-4)
"""Optimizer of the stacked capsule autoencoder, whose code has the square of eps in the root."""


def rotated(angle: int) -> str:
    """MNIST rotated by up to this many degrees."""
    return f"rotated:mnist,degrees={angle}" if angle else "mnist"


def probe(data: str, on: str = "", features: str = "") -> str:
    """Metric of a logistic regression, fitted on `on`, or on the data itself."""
    text = f"logistic:{data}" + (f",on={on}" if on else "") + ",fit=train+val"
    return text + (f",features={features}" if features else "")


def two_rows(row: str) -> dict[str, tuple[str, str]]:
    """Rows of a table that probes fill: on presences (t0), and on presences and poses (t0, A0)."""
    return {row: (row, "t0"), f"{row}, A0": (row, "t0+A0")}


class Row(NamedTuple):
    """Setting of a row of a table."""

    name: str
    """Name of its recipes."""
    model: str
    features: tuple[str, ...] = ("",)
    """Features for the probes; empty: the default features."""
    optimizer: OptimizerSpec = CAPSULES
    steps: int = 45_000
    task: TaskConfig = Elbo()
    fields: dict[str, Any] = {}


def unsupervised(
    table: str, row: str, setting: Row, data: str, metrics: tuple[str, ...], **fields: Any
) -> Recipe:
    """Train without labels, batch size 128, cosine schedule to zero."""
    return Recipe(
        paper="generative",
        table=table,
        row=row,
        steps=setting.steps,
        validate_every=max(1, setting.steps // 6),
        batch_size=128,
        data=DataSpec(name=data),
        model=model_config(setting.model, **setting.fields, **fields),
        task=setting.task,
        choose="last",
        metrics=metrics,
        optimizer=setting.optimizer,
        schedule=ScheduleSpec(kind="cosine", warmup=0.01),
        hardware=HardwareSpec(precision="bf16", compile="auto"),
    )
