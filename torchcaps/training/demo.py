"""Recipes of `torchcaps demo`: small models on the embedded digits."""

from pathlib import Path

from rich.console import Console

from torchcaps.models.registry import model_config
from torchcaps.training.recipe import (
    DataSpec,
    OptimizerSpec,
    Recipe,
    ScheduleSpec,
)
from torchcaps.training.registry import get_recipe, recipe
from torchcaps.training.run import Run
from torchcaps.training.tasks import Classify, Sparse

CLEAN, TRANSFORMED = "digits", "affnist-like:digits,size=28,shift=2,copies=4"


def _recipe(row: str, model: str, task: Classify, epochs: int, batch_size: int) -> Recipe:
    small_maps = "affine:15,shear=0.2,min_scale=0.85,max_scale=1.15"
    return Recipe(
        row=row,
        epochs=epochs,
        batch_size=batch_size,
        data=DataSpec(name=CLEAN, augment=("translate:2", small_maps)),
        metrics=(f"accuracy:{TRANSFORMED}",),
        model=model_config(model),
        task=task,
        optimizer=OptimizerSpec(kind="adam", lr=4e-3, ema=0.99),
        schedule=ScheduleSpec(kind="one_cycle"),
    )


@recipe("demo/capsnet")
def capsnet() -> Recipe:
    """Small CapsNet on 4,000 digits: above 97 % in about a minute on two cores.

    torchcaps train demo/capsnet
    """
    return _recipe(
        "CapsNet", "capsnet-small", Classify(loss="margin", reconstruction=0.002), 13, 40
    )


@recipe("demo/convnet-avg")
def convnet_avg() -> Recipe:
    """Small ConvNet-Avg on 4,000 digits: above 97 % in about a minute on two cores.

    torchcaps train demo/convnet-avg
    """
    return _recipe("ConvNet-Avg", "convnet-avg-small", Classify(loss="cross_entropy"), 16, 32)


@recipe("demo/sparse")
def sparse() -> Recipe:
    """Sparse unsupervised capsules on 4,000 digits, evaluated by probes.

    torchcaps train demo/sparse
    """
    return Recipe(
        row="sparse",
        epochs=15,
        batch_size=50,
        data=DataSpec(name=CLEAN, augment=("translate:2",)),
        metrics=("linear", "svm", "kmeans", "ranks"),
        model=model_config("sparse-small"),
        task=Sparse(),
        choose="last",
        optimizer=OptimizerSpec(kind="adam", lr=3e-3),
        schedule=ScheduleSpec(kind="one_cycle"),
    )


def run_demo(folder: Path, console: Console) -> list[Run]:
    """Train both models, one after the other, into subfolders."""
    from torchcaps.training.loop import start  # Lightning takes a second to import

    runs = []
    for name in ("demo/capsnet", "demo/convnet-avg"):
        demo = get_recipe(name)
        console.print(f"[bold]{demo.row}[/bold]  {name}")
        runs.append(start(demo, folder / name.rpartition("/")[2], console))
    return runs
