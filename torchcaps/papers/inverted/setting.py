"""Settings shared by the tables: CIFAR with a short schedule and with the printed one."""

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

CROSS, MARGIN = Classify(loss="cross_entropy", smoothing=0.1), Classify(loss="margin")
SPREAD = Classify(loss="spread", margin=0.2)
SGD = OptimizerSpec(
    kind="sgd", lr=0.3, weight_decay=5e-4, nesterov=True, decay_all=False, ema=0.999
)
ADAM, FAST_ADAM = (
    OptimizerSpec(kind="adam", lr=1e-3, ema=0.999),
    OptimizerSpec(kind="adam", lr=1e-2, ema=0.999),
)
PRINTED = {
    "sgd": OptimizerSpec(kind="sgd", lr=0.1, weight_decay=5e-4),
    "dynamic": OptimizerSpec(kind="adam", lr=1e-3),
    "em": OptimizerSpec(kind="adam", lr=1e-2),
}
AUGMENT = ("crop:4", "flip")
ERASED = (*AUGMENT, "erase:p=1")
"""Augmentation of the short schedules; the paper has no random erasing."""
HELD_OUT = 1000
"""Validation images, instead of the 5,000 of CIFAR's split; enough to choose an epoch."""


def on_cifar(
    table: str,
    row: str,
    model: str,
    *,
    classes: int = 10,
    epochs: int = 120,
    task: Classify = CROSS,
    optimizer: OptimizerSpec = SGD,
    augment: tuple[str, ...] = ERASED,
    cutmix: float = 0.0,
    **fields: Any,
) -> Recipe:
    """One-cycle schedule in fewer epochs than printed, averaged weights, best validation epoch."""
    return Recipe(
        paper="inverted",
        table=table,
        row=row,
        epochs=epochs,
        batch_size=256,
        data=DataSpec(name=f"cifar{classes}", augment=augment, held_out=HELD_OUT, cutmix=cutmix),
        model=model_config(model, **fields),
        task=task,
        optimizer=optimizer,
        schedule=ScheduleSpec(kind="one_cycle"),
        hardware=HardwareSpec(precision="bf16", compile="auto"),
    )


def printed(kind: str) -> Any:
    """The paper's optimizer for 350 epochs, rate / 10 after 150 and 250, batch size 128."""

    def change(recipe: Recipe) -> Recipe:
        assert isinstance(recipe.task, Classify)
        return replace(
            recipe,
            epochs=350,
            batch_size=128,
            task=replace(recipe.task, smoothing=0.0),
            optimizer=PRINTED[kind],
            schedule=ScheduleSpec(kind="step", milestones=(150 / 350, 250 / 350)),
            data=replace(recipe.data, augment=AUGMENT),
        )

    return change


def add(name: str, claim: str, recipe: Recipe, kind: str = "") -> None:
    """kind: the optimizer of `--protocol paper`"""
    add_recipe(f"inverted/{name}", claim, recipe, printed(kind) if kind else None)
