"""Recipes of `torchcaps demo`: small models on the embedded digits."""

import shutil
from pathlib import Path
from typing import Any

from torchcaps.escape import Console
from torchcaps.models.registry import model_config
from torchcaps.outputs import begun_by, check_folder, is_run
from torchcaps.training.recipe import DataSpec, OptimizerSpec, Recipe, ScheduleSpec
from torchcaps.training.registry import get_recipe, recipe
from torchcaps.training.run import RUNS, Run
from torchcaps.training.tasks import Classify, Sparse, TaskConfig

CLEAN, TRANSFORMED = "digits", "affnist-like:digits,size=28,shift=2,copies=4"
AFFINE = "affine:15,shear=0.2,min_scale=0.85,max_scale=1.15"
SHIFTED = DataSpec(name=CLEAN, augment=("translate:2",))
FAST = OptimizerSpec(kind="adam", lr=4e-3, ema=0.99)


def small_recipe(row: str, model: str, task: TaskConfig, **options: Any) -> Recipe:
    """Recipe with small shifts and affine maps, Adam and a one-cycle schedule."""
    defaults: dict[str, Any] = {
        "epochs": 20, "batch_size": 40, "metrics": (f"accuracy:{TRANSFORMED}",),
        "optimizer": OptimizerSpec(kind="adam", lr=3e-3, ema=0.99),
        "schedule": ScheduleSpec(kind="one_cycle"),
        "data": DataSpec(name=CLEAN, augment=("translate:2", AFFINE)),
    }  # fmt: skip
    return Recipe(row=row, model=model_config(model), task=task, **{**defaults, **options})


@recipe("demo/capsnet")
def capsnet() -> Recipe:
    """Small CapsNet on 4,000 digits: above 97 % in about a minute on two cores.

    torchcaps train demo/capsnet
    """
    task = Classify(loss="margin", reconstruction=0.002)
    return small_recipe("CapsNet", "capsnet-small", task, epochs=13, optimizer=FAST)


@recipe("demo/convnet-avg")
def convnet_avg() -> Recipe:
    """Small ConvNet-Avg on 4,000 digits: above 97 % in about a minute on two cores.

    torchcaps train demo/convnet-avg
    """
    return small_recipe(
        "ConvNet-Avg", "convnet-avg-small", Classify(loss="cross_entropy"),
        epochs=16, batch_size=32, optimizer=FAST,
    )  # fmt: skip


@recipe("demo/sparse")
def sparse() -> Recipe:
    """Sparse unsupervised capsules on 4,000 digits, evaluated by probes.

    torchcaps train demo/sparse
    """
    return small_recipe(
        "sparse", "sparse-small", Sparse(), epochs=15, batch_size=50, data=SHIFTED, choose="last",
        metrics=("linear", "svm", "kmeans", "ranks"), optimizer=OptimizerSpec(kind="adam", lr=3e-3),
    )  # fmt: skip


NAMES = ("demo/capsnet", "demo/convnet-avg")


def demo_folder(out: Path | None, force: bool) -> Path:
    """The folder of a demo: `out`, or runs/demo, numbered if that has a finished one.

    An unfinished demo is continued; force: a finished one is removed
    """
    folder, number = out or RUNS / "demo", 2
    while out is None and not force and folder.exists() and begun_by(folder) != "demo":
        folder, number = folder.with_name(f"demo-{number}"), number + 1
    check_folder(folder, command="demo", force=force)
    if force and begun_by(folder) != "demo":
        for run in (folder / name.rpartition("/")[2] for name in NAMES):
            if is_run(run):
                shutil.rmtree(run)
    return folder


def run_demo(folder: Path, console: Console) -> list[Run]:
    """Train both models, one after the other, into subfolders; resume what is there."""
    from torchcaps.training.loop import resume, start  # Lightning takes a second to import

    runs = []
    for name in NAMES:
        demo, run = get_recipe(name), folder / name.rpartition("/")[2]
        console.print(f"{demo.row}  {name}", style="bold")
        runs.append(resume(run, console) if is_run(run) else start(demo, run, console))
    return runs
