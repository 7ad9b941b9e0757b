"""What the tables of the paper share: CIFAR under a short schedule, and under the printed one."""

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

CROSS, MARGIN = Classify("cross_entropy", smoothing=0.1), Classify("margin")
SPREAD = Classify("spread", margin=0.2)
SGD = OptimiserSpec("sgd", 0.3, 5e-4, nesterov=True, decay_all=False, ema=0.999)
ADAM, FAST_ADAM = OptimiserSpec("adam", 1e-3, ema=0.999), OptimiserSpec("adam", 1e-2, ema=0.999)
PRINTED = {
    "sgd": OptimiserSpec("sgd", 0.1, 5e-4),
    "dynamic": OptimiserSpec("adam", 1e-3),
    "em": OptimiserSpec("adam", 1e-2),
}
AUGMENT = ("crop:4", "flip")
ERASED = (*AUGMENT, "erase:p=1")
"""Augmentation of the short schedules; the paper erases nothing."""
HELD_OUT = 1000
"""How many of the 5,000 training images that CIFAR's split holds out: enough to choose an epoch."""


def on_cifar(
    table: str,
    row: str,
    model: str,
    *,
    classes: int = 10,
    epochs: int = 120,
    task: Classify = CROSS,
    optimiser: OptimiserSpec = SGD,
    augment: tuple[str, ...] = ERASED,
    cutmix: float = 0.0,
    **fields: Any,
) -> Recipe:
    """One cycle in a fraction of the printed epochs; the weights' average; chosen on validation."""
    return Recipe(
        paper="inverted",
        table=table,
        row=row,
        epochs=epochs,
        batch_size=256,
        data=DataSpec(f"cifar{classes}", augment, held_out=HELD_OUT, cutmix=cutmix),
        model=model_config(model, **fields),
        task=task,
        optimiser=optimiser,
        schedule=ScheduleSpec("one_cycle"),
        hardware=HardwareSpec(precision="bf16", compile="auto"),
    )


def printed(kind: str) -> Any:
    """350 epochs of the paper's optimiser, a tenth after 150 and 250, batch 128."""

    def change(recipe: Recipe) -> Recipe:
        assert isinstance(recipe.task, Classify)
        return replace(
            recipe,
            epochs=350,
            batch_size=128,
            task=replace(recipe.task, smoothing=0.0),
            optimiser=PRINTED[kind],
            schedule=ScheduleSpec("step", milestones=(150 / 350, 250 / 350)),
            data=replace(recipe.data, augment=AUGMENT),
        )

    return change


def add(name: str, claim: str, made: Recipe, kind: str = "") -> None:
    """kind: the optimiser of `--protocol paper`"""
    add_recipe(f"inverted/{name}", claim, made, printed(kind) if kind else None)
