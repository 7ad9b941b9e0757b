"""What the tables share: six data sets with their augmentations, pretraining and finetuning."""

from dataclasses import dataclass, replace
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
from torchcaps.train.tasks import Classify, Masked


@dataclass(frozen=True)
class Setting:
    data: str
    augment: tuple[str, ...]
    patch_size: int
    """Side of the large patches, with which all but Table 1's and 4's rows were made."""

    @property
    def small(self) -> dict[str, Any]:
        """Patches of 4 at 64 px, of 2 at 32 and 28: the text has no size, and these reach what it
        prints."""
        return {"patch_size": self.patch_size // 2}

    @property
    def drawn(self) -> dict[str, Any]:
        """And what the paper draws: standardised pixels, by transforms that go by capsule type,
        since own ones for 256 places would be half a billion numbers."""
        return {**self.small, "target": "standardised", "decoder_shared": True}


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
"""What simple learners on frozen capsules make of the images, while pretraining and after it."""
NLL = Classify("cross_entropy")
PIXELS = Masked()
SGD = OptimiserSpec("sgd", 0.1, 1e-4)
ADAMW = OptimiserSpec("adamw", 1e-3, 0.05, decay_all=False)


def pretraining(
    column: str, task: Masked = PIXELS, row: str = "pretraining", **fields: Any
) -> Recipe:
    """50 epochs of drawing the half of the patches that was removed."""
    s = SETTINGS[column]
    model = {"patch_size": s.patch_size, **fields}
    return Recipe(
        paper="mcae",
        table="pretraining",
        row=row,
        epochs=50,
        batch_size=256,
        data=DataSpec(s.data, s.augment),
        model=model_config("mcae-pretrain", **model),
        task=task,
        measures=PROBES,
        watch=PROBES,
        optimiser=SGD,
        schedule=ScheduleSpec("cosine", warmup=0.05),
        hardware=HardwareSpec(precision="bf16", compile="auto"),
    )


def finetuning(
    table: str,
    row: str,
    column: str,
    before: str,
    data: str = "",
    model: str = "mcae",
    **fields: Any,
) -> Recipe:
    """350 epochs with labels, from the weights of `before` where it names a pretraining."""
    s = SETTINGS[column]
    ours = model.startswith("mcae")
    own = {"patch_size": s.patch_size, **fields} if ours else fields
    return Recipe(
        paper="mcae",
        table=table,
        row=row,
        epochs=350,
        batch_size=256,
        data=DataSpec(data or s.data, s.augment),
        model=model_config(model, **own),
        task=NLL,
        optimiser=SGD,
        schedule=ScheduleSpec("cosine", warmup=0.02),
        hardware=HardwareSpec(precision="bf16", compile="auto"),
        before=before,
    )


def printed(recipe: Recipe) -> Recipe:
    """SGD with default settings, 0.1 and a cosine are printed; the batch is SR-CapsNet's."""
    optimiser = OptimiserSpec("sgd", 0.1, momentum=0.0)
    return replace(recipe, batch_size=64, optimiser=optimiser, schedule=ScheduleSpec("cosine"))


def add(name: str, claim: str, made: Recipe, as_printed: bool = False) -> None:
    """as_printed: with a `--protocol paper`"""
    add_recipe(f"mcae/{name}", claim, made, printed if as_printed else None)


def slug(column: str) -> str:
    return column.lower().replace("-", "")
