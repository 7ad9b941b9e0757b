"""A recipe for one's own images: a model's name and a data set decide the rest.

Task and optimiser are those of a recipe that trains such a network; batch, epochs and augmentation
follow from the size of the set.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torchcaps.data import Dataset
from torchcaps.errors import TorchcapsError
from torchcaps.models.base import SIZES, ModelConfig
from torchcaps.models.registry import model_config
from torchcaps.train.recipe import DataSpec, HardwareSpec, Recipe, ScheduleSpec
from torchcaps.train.registry import get_recipe, recipes
from torchcaps.train.tasks import TaskConfig, task_class

BATCHES = ((5000, 128), (1500, 64), (300, 32), (60, 16), (0, 4))
"""From how many training images on a batch has so many."""
DIGIT = 28 * 28
"""Pixels of a digit, for which recipes weigh reconstructions."""
SEEN = 12_000
"""Images that a run sees, if that makes between 10 and 60 epochs."""


def own_recipe(name: str, data: Dataset, spec: DataSpec) -> tuple[Recipe, Callable[[Recipe], str]]:
    """The recipe for a model by its name, and what says how a recipe trains on this data: this one,
    or what became of it when fields were replaced.
    """
    config = model_config(name)
    near = like(config, bool(data.classes))
    count = len(data.train) * data.copies
    batch = min(next(b for least, b in BATCHES if count >= least), count)
    epochs = min(60, max(10, SEEN // count))
    channels, height, width = data.image_shape
    shift = max(1, min(height, width) // 12)
    augment = () if data.render else (f"translate:{shift}", *(("flip",) if channels == 3 else ()))
    made = Recipe(
        name=name,
        epochs=epochs,
        batch_size=batch,
        data=replace(spec, augment=augment),
        model=config,
        task=_scaled(near.task, channels * height * width),
        optimiser=replace(
            near.optimiser,
            accumulate=1,
            lr=_rate(near),
            ema=near.optimiser.ema if epochs * count // batch > 500 else 0.0,  # it lags at first
        ),
        schedule=ScheduleSpec("one_cycle"),
        hardware=HardwareSpec(compile="none", precision=near.hardware.precision),
    )
    return made, lambda recipe: _line(recipe, data, near)


def _line(recipe: Recipe, data: Dataset, near: Recipe) -> str:
    _, height, width = data.image_shape
    said = {"flip": "mirrored"}
    moved = (re.sub(r"^translate:(\d+)$", r"moved by up to \1 px", a) for a in recipe.data.augment)
    changes = ", ".join(said.get(a, a) for a in moved) or "as they are"
    alike = f" as in {near.name}" if recipe.task.kind == near.task.kind else ""
    line = (
        f"{len(data.train) * data.copies:,} images to learn from, {len(data.val):,} to choose, "
        f"{len(data.test):,} to test, {data.num_classes or 'no'} classes, {height}x{width}: "
        f"{recipe.epochs} epoch{'s' * (recipe.epochs != 1)} in batches of {recipe.batch_size}, "
        f"{changes}; {recipe.task.kind}{alike}."
    )
    return line + (f" {data.note}." if data.note else "")


def _scaled(task: TaskConfig, pixels: int) -> TaskConfig:
    """Squared errors are summed over pixels: of more than a digit's each counts for less."""
    weight = getattr(task, "reconstruction", 0.0)
    if not weight or pixels <= DIGIT:
        return task
    fields: dict[str, Any] = {"reconstruction": float(f"{weight * DIGIT / pixels:.2g}")}
    return replace(task, **fields)


def _rate(near: Recipe) -> float:
    """Adam's rates of small images are too high for larger ones."""
    rate = near.optimiser.lr
    return min(rate, 1e-3) if near.optimiser.kind.startswith("adam") else rate


def like(config: ModelConfig, labelled: bool) -> Recipe:
    """The recipe nearest to a model: of its family, its stage, and then of most fields alike."""

    def alike(recipe: Recipe) -> int:
        fields = config.__dataclass_fields__
        return sum(getattr(recipe.model, f) == getattr(config, f) for f in fields if f not in SIZES)

    found = [get_recipe(name) for name in recipes()]
    found = [r for r in found if type(r.model) is type(config)]
    stage = getattr(config, "stage", None)
    found = [r for r in found if getattr(r.model, "stage", None) == stage]
    suited = [r for r in found if labelled or not task_class(r.task).needs_labels]
    if not suited and found:
        raise TorchcapsError(
            f"A {config.family} learns from labels, and these images have none; sparse, vae, "
            "autoencoder and mcae-pretrain learn without."
        )
    if not suited:
        raise TorchcapsError(f"No recipe trains a {config.family}: there is nothing to go by.")
    return max(suited, key=alike)
