"""`make demo`: a small CapsNet and a small ConvNet-Avg on the embedded digits; others as small."""

from pathlib import Path

from rich.console import Console

from torchcaps.models.registry import model_config
from torchcaps.train.recipe import (
    DataSpec,
    OptimiserSpec,
    Recipe,
    ScheduleSpec,
)
from torchcaps.train.registry import get_recipe, recipe
from torchcaps.train.run import Run
from torchcaps.train.tasks import Classify, Sparse

CLEAN, TRANSFORMED = "digits", "affnist-like:digits,size=28,shift=2,copies=4"


def _recipe(row: str, model: str, task: Classify, epochs: int, batch_size: int) -> Recipe:
    small_maps = "affine:15,shear=0.2,min_scale=0.85,max_scale=1.15"
    return Recipe(
        row=row,
        epochs=epochs,
        batch_size=batch_size,
        data=DataSpec(CLEAN, ("translate:2", small_maps)),
        measures=(f"accuracy:{TRANSFORMED}",),
        model=model_config(model),
        task=task,
        optimiser=OptimiserSpec("adam", lr=4e-3, ema=0.99),
        schedule=ScheduleSpec("one_cycle"),
    )


@recipe("demo/capsnet")
def capsnet() -> Recipe:
    """A narrow CapsNet on 4,000 digits: above 97 % in about a minute on two cores.

    torchcaps train demo/capsnet
    """
    return _recipe("CapsNet", "capsnet-small", Classify("margin", reconstruction=0.002), 13, 40)


@recipe("demo/convnet-avg")
def convnet_avg() -> Recipe:
    """A narrow ConvNet-Avg on 4,000 digits: above 97 % in about a minute on two cores.

    torchcaps train demo/convnet-avg
    """
    return _recipe("ConvNet-Avg", "convnet-avg-small", Classify("cross_entropy"), 16, 32)


@recipe("demo/sparse")
def sparse() -> Recipe:
    """Sparse capsules on 4,000 digits whose labels they never see, read by simple learners.

    torchcaps train demo/sparse
    """
    return Recipe(
        row="sparse",
        epochs=15,
        batch_size=50,
        data=DataSpec(CLEAN, ("translate:2",)),
        measures=("linear", "svm", "kmeans", "ranks"),
        model=model_config("sparse-small"),
        task=Sparse(),
        choose="last",
        optimiser=OptimiserSpec("adam", lr=3e-3),
        schedule=ScheduleSpec("one_cycle"),
    )


def run_demo(folder: Path, console: Console) -> list[Run]:
    """Train both, one after the other, into subfolders."""
    from torchcaps.train.loop import start  # Lightning takes a second to import

    runs = []
    for name in ("demo/capsnet", "demo/convnet-avg"):
        chosen = get_recipe(name)
        console.print(f"[bold]{chosen.row}[/bold]  {name}")
        runs.append(start(chosen, folder / name.rpartition("/")[2], console))
    return runs
