"""A recipe for a model and a data set of the user's own.

Task and optimizer are the model's usual ones (`defaults.py`); batch size, epochs and augmentation
follow from the size of the data set. The model "auto" is a capsule head on pretrained features if
their weights are on this machine, else the strongest ConvNet baseline.
"""

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torchcaps.data import Dataset
from torchcaps.data.registry import entry
from torchcaps.data.spec import parse
from torchcaps.metrics.reference import CONVNET, advice
from torchcaps.models import Model
from torchcaps.models.hub import pretrained_folder
from torchcaps.models.photos.base import PhotoConfig, how_to_get
from torchcaps.models.photos.weights import find_weights
from torchcaps.models.registry import MODELS, model_config
from torchcaps.training.defaults import Defaults, defaults
from torchcaps.training.recipe import DataSpec, HardwareSpec, OptimizerSpec, Recipe, ScheduleSpec
from torchcaps.training.task import TaskConfig
from torchcaps.training.tasks import Classify

BATCH_SIZES = ((5000, 128), (1500, 64), (300, 32), (60, 16), (0, 4))
"""(training images, batch size): the first row with at most so many images applies."""
DIGIT_PIXELS = 28 * 28
"""Pixels of a digit, for which the recipes weigh reconstructions."""
TOTAL_IMAGES = 12_000
"""Images that a run sees in all its epochs, if that makes between 10 and 60 of them."""


PHOTO_SIZE = 224
"""Side of images for a pretrained backbone, unless the data set's name has a size."""
HEAD_STEPS, HEAD_EPOCHS, HEAD_BATCH = 400, 16, 64
"""Least steps and epochs of a head on frozen features, and its batch size."""
SMALLEST_PHOTO = 96
"""Side of images in memory from which a pretrained backbone is of use."""


def choose_model(
    model: str, spec: DataSpec, image_shape: tuple[int, int, int] | None = None
) -> tuple[str, DataSpec, str]:
    """The model that "auto" stands for, the data at its size, and a sentence that says why.

    image_shape: of data in memory. Another model stays as it is, and on a backbone gets its size.
    """
    auto, remark = model == "auto", ""
    name = "capsule-head" if auto else model
    config = MODELS[name].config if name in MODELS else None
    if auto and isinstance(config, PhotoConfig):
        weights = find_weights(config.backbone)
        small = image_shape is not None and min(image_shape[1:]) < SMALLEST_PHOTO
        if weights and not small:
            remark = f"auto: {name} on {config.backbone} with weights {weights}."
        else:
            why = f"No pretrained weights of {config.backbone} are on this machine"
            why = f"Images below {SMALLEST_PHOTO} pixels" if small else why
            hint = "" if small else f" {how_to_get(config.backbone)}, for capsule-head at 224 px."
            return CONVNET, spec, f"auto: {CONVNET}, the strongest baseline. {why}.{hint}"
    if (
        isinstance(config, PhotoConfig)
        and image_shape is None
        and "size" not in parse(spec.name)[2]
    ):
        if "size" in inspect.signature(entry(spec.name).load).parameters:
            spec = replace(spec, name=f"{spec.name},size={PHOTO_SIZE}")
    return name, spec, remark


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
    if isinstance(config, PhotoConfig):
        recipe = _head_recipe(name, config, usual, data, spec)
        return recipe, lambda recipe: describe(recipe, data)
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


def _head_recipe(
    name: str, config: PhotoConfig, usual: Defaults, data: Dataset, spec: DataSpec
) -> Recipe:
    """A head on frozen features, which are computed once: no augmentation unless copies have it."""
    count = len(data.train)
    batch_size = min(HEAD_BATCH, count, next(size for least, size in BATCH_SIZES if count >= least))
    per_epoch = count // batch_size
    steps = max(HEAD_STEPS, HEAD_EPOCHS * per_epoch)
    if config.weights == "none" and find_weights(config.backbone):
        config = replace(config, weights="auto")
    several = data.train.labels.ndim == 2
    return Recipe(
        name=name,
        epochs=-(-steps // per_epoch),
        validate_every=max(per_epoch, steps // HEAD_EPOCHS),
        batch_size=batch_size,
        data=spec,
        model=config,
        task=Classify(loss="binary_cross_entropy") if several else usual.task,
        optimizer=usual.optimizer,
        schedule=ScheduleSpec(kind="one_cycle"),
        hardware=HardwareSpec(precision=usual.precision),
    )


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
