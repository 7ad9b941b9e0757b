"""Settings shared by the tables: data, losses, and functions that build recipes."""

from dataclasses import replace
from typing import Any

from torchcaps.models.registry import model_config
from torchcaps.training.recipe import (
    DataSpec,
    HardwareSpec,
    OptimizerSpec,
    Recipe,
    ScheduleSpec,
)
from torchcaps.training.registry import add_recipe
from torchcaps.training.tasks import Classify

MARGIN, SOFTMAX = Classify(loss="margin"), Classify(loss="cross_entropy")
SIGMOID, SPREAD = Classify(loss="binary_cross_entropy"), Classify(loss="spread", margin=0.2)

TODAY = OptimizerSpec(kind="adamw", lr=2e-3, weight_decay=0.05, ema=0.999)
"""Optimizer of the rows that are not in the paper."""


def on_affnist(table: str, row: str, model: str, task: Classify, **fields: Any) -> Recipe:
    """Train on MNIST placed at random on 40x40, test on the same and on generated affNIST."""
    return _recipe(
        table,
        row,
        model_config(model, **fields),
        task,
        epochs=20,
        data=DataSpec(name="translated:mnist"),
        metrics=("accuracy:affnist-like:mnist", "accuracy:affnist-like:mnist,shift=8", "train"),
    )


def on_multimnist(
    table: str, row: str, model: str, task: Classify, copies: int = 100, **fields: Any
) -> Recipe:
    """Train on 60,000 x copies pairs of overlapping digits; both digits must be correct."""
    return _recipe(
        table,
        row,
        model_config(model, **fields),
        task,
        epochs=max(1, 20 // copies),
        data=DataSpec(name=f"multimnist:mnist,copies={copies}"),
        metrics=("train",),
    )


def on_plain(table: str, row: str, data: str, model: str, task: Classify) -> Recipe:
    """Train for 20 epochs on a dataset without augmentation."""
    return _recipe(table, row, model_config(model), task, epochs=20, data=DataSpec(name=data))


def _recipe(table: str, row: str, model: Any, task: Classify, **fields: Any) -> Recipe:
    return Recipe(
        paper="robustness",
        table=table,
        row=row,
        batch_size=128,
        model=model,
        task=task,
        optimizer=OptimizerSpec(kind="adam", lr=1e-3),
        schedule=ScheduleSpec(kind="one_cycle"),
        hardware=HardwareSpec(precision="bf16", compile="auto"),
        **fields,
    )


def stopped_on_test(recipe: Recipe) -> Recipe:
    """The paper's early stopping at a test accuracy of 99.22 %, with a constant learning rate.

    Warmup in the first epoch is added, because CapsNet stays at chance without it.
    """
    schedule = ScheduleSpec(kind="constant", warmup=1 / recipe.epochs)
    return replace(recipe, stop_on="test", target_accuracy=0.9922, schedule=schedule)


def add(name: str, claim: str, recipe: Recipe, early_stop: bool = False) -> None:
    add_recipe(f"robustness/{name}", claim, recipe, stopped_on_test if early_stop else None)


def slug(row: str) -> str:
    """Name of a row as the last part of a recipe's name."""
    words = "".join(c if c.isalnum() else " " for c in row.lower())
    return "-".join(words.split())
