"""What the tables of the paper share: two data settings, and recipes made from a model."""

from dataclasses import replace
from typing import Any

from torchcaps.models.registry import model_config
from torchcaps.train.recipe import (
    DataSpec,
    HardwareSpec,
    OptimiserSpec,
    Recipe,
    ScheduleSpec,
)
from torchcaps.train.registry import add_recipe
from torchcaps.train.tasks import Classify

MARGIN, SOFTMAX = Classify("margin"), Classify("cross_entropy")
SIGMOID, SPREAD = Classify("binary_cross_entropy"), Classify("spread", margin=0.2)

TODAY = OptimiserSpec("adamw", lr=2e-3, weight_decay=0.05, ema=0.999)
"""The optimiser of the rows that are not the paper's."""


def on_affnist(table: str, row: str, model: str, task: Classify, **fields: Any) -> Recipe:
    """Train on MNIST placed at random on 40x40, test on that and on drawn affNIST."""
    return _recipe(
        table,
        row,
        model_config(model, **fields),
        task,
        epochs=20,
        data=DataSpec("translated:mnist"),
        measures=("accuracy:affnist-like:mnist", "accuracy:affnist-like:mnist,shift=8", "train"),
    )


def on_multimnist(
    table: str, row: str, model: str, task: Classify, copies: int = 100, **fields: Any
) -> Recipe:
    """Train on two overlapping digits, 60,000 x copies of them in one pass; both must be right."""
    return _recipe(
        table,
        row,
        model_config(model, **fields),
        task,
        epochs=max(1, 20 // copies),
        data=DataSpec(f"multimnist:mnist,copies={copies}"),
        measures=("train",),
    )


def on_plain(table: str, row: str, data: str, model: str, task: Classify) -> Recipe:
    return _recipe(table, row, model_config(model), task, epochs=20, data=DataSpec(data))


def _recipe(table: str, row: str, model: Any, task: Classify, **fields: Any) -> Recipe:
    return Recipe(
        paper="robustness",
        table=table,
        row=row,
        batch_size=128,
        model=model,
        task=task,
        optimiser=OptimiserSpec("adam", lr=1e-3),
        schedule=ScheduleSpec("one_cycle"),
        hardware=HardwareSpec(precision="bf16", compile="auto"),
        **fields,
    )


def stopped_on_test(recipe: Recipe) -> Recipe:
    """The paper's stop: the epoch whose test accuracy reaches 99.22 %, from a constant rate.

    The rate rises in the first epoch, without which CapsNet stays at chance.
    """
    schedule = ScheduleSpec("constant", warmup=1 / recipe.epochs)
    return replace(recipe, stop_on="test", target_accuracy=0.9922, schedule=schedule)


def add(name: str, claim: str, made: Recipe, early_stop: bool = False) -> None:
    add_recipe(f"robustness/{name}", claim, made, stopped_on_test if early_stop else None)


def slug(row: str) -> str:
    """A row's name as the end of a recipe's."""
    kept = "".join(c if c.isalnum() else " " for c in row.lower())
    return "-".join(kept.split())
