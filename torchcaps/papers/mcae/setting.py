"""Settings shared by the tables: six datasets with augmentation, pretraining and finetuning."""

from dataclasses import dataclass, replace
from typing import Any

from torchcaps.models.base import ModelConfig
from torchcaps.models.registry import model_config
from torchcaps.training.recipe import (
    DataSpec,
    HardwareSpec,
    OptimizerSpec,
    Recipe,
    ScheduleSpec,
)
from torchcaps.training.registry import add_recipe
from torchcaps.training.tasks import Classify, Masked


@dataclass(frozen=True)
class Setting:
    data: str
    augment: tuple[str, ...]
    patch_size: int
    """Side of the large patches, used by all rows except those of Tables 1 and 4."""

    @property
    def small(self) -> dict[str, Any]:
        """Patches of 4 at 64 px, of 2 at 32 and 28. The paper prints no size; these reach its
        values.
        """
        return {"patch_size": self.patch_size // 2}

    @property
    def standardized(self) -> dict[str, Any]:
        """Small patches and the paper's target, standardized pixels. The decoder's transforms are
        shared over positions: separate ones for 256 positions need half a billion parameters.
        """
        return {**self.small, "target": "standardized", "decoder_shared": True}


CROP = "resized-crop:min_area=0.8"
JITTER = "color-jitter:brightness=0.4,contrast=0.4,saturation=0.4"
LIGHT = "color-jitter:brightness=0.125,contrast=0.3"
SETTINGS = {
    "MNIST": Setting("mnist", (CROP,), 4),
    "Fashion": Setting("fashion-mnist", (CROP, "flip"), 4),
    "smallNORB": Setting("smallnorb,crop=32", (LIGHT,), 4),
    "CIFAR-10": Setting("cifar10", (CROP, "flip"), 4),
    "Imagenette": Setting("imagenette", (CROP, "flip", JITTER), 8),
    "Imagewoof": Setting("imagewoof", (CROP, "flip", JITTER), 8),
}
PROBES = ("linear,limit=5000", "knn,limit=5000")
"""Probes on frozen capsules, during and after pretraining."""
NLL = Classify(loss="cross_entropy")
PIXELS = Masked()
SGD = OptimizerSpec(kind="sgd", lr=0.1, weight_decay=1e-4)
ADAMW = OptimizerSpec(kind="adamw", lr=1e-3, weight_decay=0.05, decay_all=False)


def _recipe(
    table: str, row: str, setting: Setting, model: ModelConfig, *, warmup: float, **fields: Any
) -> Recipe:
    return Recipe(
        paper="mcae",
        table=table,
        row=row,
        batch_size=256,
        data=DataSpec(name=setting.data, augment=setting.augment),
        model=model,
        optimizer=SGD,
        schedule=ScheduleSpec(kind="cosine", warmup=warmup),
        hardware=HardwareSpec(precision="bf16", compile="auto"),
        **fields,
    )


def pretraining(
    column: str, task: Masked = PIXELS, row: str = "pretraining", **fields: Any
) -> Recipe:
    """50 epochs of reconstructing the removed half of the patches."""
    s = SETTINGS[column]
    model = model_config("mcae-pretrain", **{"patch_size": s.patch_size, **fields})
    return _recipe(
        "pretraining", row, s, model, warmup=0.05, epochs=50, task=task, metrics=PROBES,
        watch=PROBES,
    )  # fmt: skip


def finetuning(
    table: str,
    row: str,
    column: str,
    before: str,
    data: str = "",
    model: str = "mcae",
    **fields: Any,
) -> Recipe:
    """350 epochs with labels, from the weights of the pretraining `before`, if any."""
    s = SETTINGS[column]
    if model.startswith("mcae"):
        fields = {"patch_size": s.patch_size, **fields}
    return _recipe(
        table, row, replace(s, data=data or s.data), model_config(model, **fields),
        warmup=0.02, epochs=350, task=NLL, before=before,
    )  # fmt: skip


def printed(recipe: Recipe) -> Recipe:
    """Printed: SGD with default settings, learning rate 0.1, cosine; batch size of SR-CapsNet."""
    optimizer = OptimizerSpec(kind="sgd", lr=0.1, momentum=0.0)
    return replace(recipe, batch_size=64, optimizer=optimizer, schedule=ScheduleSpec(kind="cosine"))


def add(name: str, claim: str, recipe: Recipe, as_printed: bool = False) -> None:
    """as_printed: register a `--protocol paper`"""
    add_recipe(f"mcae/{name}", claim, recipe, printed if as_printed else None)


def slug(column: str) -> str:
    return column.lower().replace("-", "")
