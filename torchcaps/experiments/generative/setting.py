"""What the tables share: training without labels on one kind of images, and probes that read it."""

from typing import Any, NamedTuple

from torchcaps.models.registry import model_config
from torchcaps.train.recipe import DataSpec, HardwareSpec, OptimiserSpec, Recipe, ScheduleSpec
from torchcaps.train.tasks import Elbo, TaskConfig

METRIC = "logistic_accuracy"
CAPSULES = OptimiserSpec("adam", 1e-3, clip=1000.0, rates=("process=10",))
PLAIN = OptimiserSpec("adam", 1e-3)
AUTHORS = OptimiserSpec("rmsprop", 1e-4, beta=0.9, eps=7.8e-4)
"""The stacked capsule autoencoder's, whose code has the square of eps under the root."""


def turned(angle: int) -> str:
    """MNIST turned by up to so many degrees."""
    return f"rotated:mnist,degrees={angle}" if angle else "mnist"


def probe(data: str, on: str = "", features: str = "") -> str:
    """The measure that fits a logistic regression, on the data itself unless said otherwise."""
    text = f"logistic:{data}" + (f",on={on}" if on else "") + ",fit=train+val"
    return text + (f",features={features}" if features else "")


class Row(NamedTuple):
    """What fills a row of a table."""

    name: str
    """Its recipes' name."""
    model: str
    reads: tuple[str, ...] = ("",)
    """Features that probes read; empty: the usual ones."""
    optimiser: OptimiserSpec = CAPSULES
    steps: int = 45_000
    task: TaskConfig = Elbo()
    fields: dict[str, Any] = {}


def unsupervised(
    table: str, row: str, made: Row, data: str, measures: tuple[str, ...], **fields: Any
) -> Recipe:
    """Trained without labels, 128 images a step, a cosine to zero."""
    return Recipe(
        paper="generative",
        table=table,
        row=row,
        steps=made.steps,
        validate_every=max(1, made.steps // 6),
        batch_size=128,
        data=DataSpec(data),
        model=model_config(made.model, **made.fields, **fields),
        task=made.task,
        choose="last",
        measures=measures,
        optimiser=made.optimiser,
        schedule=ScheduleSpec("cosine", warmup=0.01),
        hardware=HardwareSpec(precision="bf16", compile="auto"),
    )
