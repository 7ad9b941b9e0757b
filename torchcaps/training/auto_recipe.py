"""A recipe for a model and a data set of the user's own.

Task and optimizer are the model's usual ones (`defaults.py`); batch size, epochs and augmentation
follow from the size of the data set.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torchcaps.data import Dataset
from torchcaps.metrics.reference import advice
from torchcaps.models import Model
from torchcaps.models.hub import pretrained_folder
from torchcaps.models.registry import model_config
from torchcaps.training.defaults import defaults
from torchcaps.training.recipe import DataSpec, HardwareSpec, OptimizerSpec, Recipe, ScheduleSpec
from torchcaps.training.task import TaskConfig

BATCH_SIZES = ((5000, 128), (1500, 64), (300, 32), (60, 16), (0, 4))
"""(training images, batch size): the first row with at most so many images applies."""
DIGIT_PIXELS = 28 * 28
"""Pixels of a digit, for which the recipes weigh reconstructions."""
TOTAL_IMAGES = 12_000
"""Images that a run sees in all its epochs, if that makes between 10 and 60 of them."""


def auto_recipe(
    model: str | Model, data: Dataset, spec: DataSpec
) -> tuple[Recipe, Callable[[Recipe], str]]:
    """The recipe for a model on a data set, and a function that describes a recipe on this data.

    model: a name, with a tag to start from pretrained weights, or an instance
    """
    if isinstance(model, str):
        name, _, tag = model.partition(".")
        config, start = model_config(name), model if tag else ""
        if tag:
            pretrained_folder(model)  # raises for an unknown tag
    else:
        name, config, start = model.config.family, model.config, ""
    usual = defaults(name, config, bool(data.classes))
    count = len(data.train) * data.copies
    batch_size = min(next(size for least, size in BATCH_SIZES if count >= least), count)
    epochs = min(60, max(10, TOTAL_IMAGES // count))
    channels, height, width = data.image_shape
    shift = max(1, min(height, width) // 12)
    augment = () if data.render else (f"translate:{shift}", *(("flip",) if channels == 3 else ()))
    long_enough = epochs * count // batch_size > 500  # an average of weights lags at first
    recipe = Recipe(
        name=name,
        epochs=epochs,
        batch_size=batch_size,
        data=replace(spec, augment=augment),
        model=config,
        task=_scaled(usual.task, channels * height * width),
        start_from=start,
        optimizer=replace(
            usual.optimizer,
            lr=_rate(usual.optimizer),
            ema=usual.optimizer.ema if long_enough else 0.0,
        ),
        schedule=ScheduleSpec(kind="one_cycle"),
        hardware=HardwareSpec(compile="none", precision=usual.precision),
    )
    return recipe, lambda recipe: describe(recipe, data)


def describe(recipe: Recipe, data: Dataset) -> str:
    """One line about how a recipe trains on a data set, and a baseline for photographs."""
    _, height, width = data.image_shape
    shifts = (re.sub(r"^translate:(\d+)$", r"shift up to \1 px", a) for a in recipe.data.augment)
    line = (
        f"{len(data.train) * data.copies:,} training, {len(data.val):,} validation and "
        f"{len(data.test):,} test images of {height}x{width} in {data.num_classes or 'no'} "
        f"classes; {recipe.epochs} epoch{'s' * (recipe.epochs != 1)}, batch size "
        f"{recipe.batch_size}, augmentation: {', '.join(shifts) or 'none'}; task "
        f"{recipe.task.kind}."
    )
    note = f"{data.note[0].upper()}{data.note[1:]}." if data.note else ""
    notes = (note, advice(data, recipe.model.family))
    return " ".join([line, *filter(None, notes)])


def _scaled(task: TaskConfig, pixels: int) -> TaskConfig:
    """The task with a smaller reconstruction weight for large images: errors are summed."""
    weight = getattr(task, "reconstruction", 0.0)
    if not weight or pixels <= DIGIT_PIXELS:
        return task
    fields: dict[str, Any] = {"reconstruction": float(f"{weight * DIGIT_PIXELS / pixels:.2g}")}
    return replace(task, **fields)


def _rate(optimizer: OptimizerSpec) -> float:
    """Adam's learning rates of small images are too high for larger ones."""
    return min(optimizer.lr, 1e-3) if optimizer.kind.startswith("adam") else optimizer.lr
