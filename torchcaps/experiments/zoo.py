"""Small models of the embedded digits, one of each kind, whose weights come with torchcaps.

`torchcaps.load("zoo:capsnet")`. Each was trained on a CPU by its recipe and kept in half precision;
its folder under `torchcaps/zoo/` has the record of that run (`python -m torchcaps.cli.keep RUN`).
"""

from dataclasses import replace
from typing import Any

from torchcaps.experiments.demo import CLEAN, TRANSFORMED, capsnet, convnet_avg
from torchcaps.models.registry import model_config
from torchcaps.train.recipe import DataSpec, OptimiserSpec, Recipe, ScheduleSpec
from torchcaps.train.registry import add_recipe
from torchcaps.train.tasks import Classify, Elbo, Masked, Sparse, TaskConfig

AFFINE = "affine:15,shear=0.2,min_scale=0.85,max_scale=1.15"
JUDGED = (f"accuracy:{TRANSFORMED}",)


def _small(row: str, model: str, task: TaskConfig, **changed: Any) -> Recipe:
    """Digits moved a little, Adam, a rate that rises and falls."""
    options: dict[str, Any] = {
        "epochs": 20, "batch_size": 40, "measures": JUDGED,
        "optimiser": OptimiserSpec("adam", lr=3e-3, ema=0.99),
        "schedule": ScheduleSpec("one_cycle"),
        "data": DataSpec(CLEAN, ("translate:2", AFFINE)),
    }  # fmt: skip
    own = changed.pop("fields", {})
    return Recipe(row=row, model=model_config(model, **own), task=task, **{**options, **changed})


def _inverted() -> Recipe:
    """Inverted attention with three passes, so that every layer but the first attends."""
    fields = {"num_types": 16, "primary_stride": 2, "num_iters": 3}
    return _small(
        "inverted", "inverted-simple", Classify("cross_entropy"), fields=fields, epochs=12
    )


def _mcae() -> Recipe:
    """Half of the patches are removed, and drawn by convolutions."""
    fields = {"patch_size": 4, "width": 96, "decoder": "conv"}
    return _small(
        "MCAE", "mcae-pretrain", Masked(), fields=fields, epochs=25, batch_size=50,
        measures=("linear", "knn"), data=DataSpec(CLEAN, ("translate:2",)), choose="last",
        optimiser=OptimiserSpec("adamw", 2e-3, 0.05, decay_all=False),
    )  # fmt: skip


def _sparse() -> Recipe:
    """Sparse capsules that see no label."""
    return _small(
        "sparse", "sparse-small", Sparse(), epochs=25, batch_size=50, choose="last",
        measures=("linear", "kmeans", "ranks"), data=DataSpec(CLEAN, ("translate:2",)),
    )  # fmt: skip


def _generative() -> Recipe:
    """Generative capsules with exactly one object on, whose pose is solved for."""
    steps = 3_000
    return _small(
        "generative", "generative-framed", fields={"frames": 1, "test_frames": 1, "channels": 32},
        task=Elbo(usage=10.0, usage_steps=2_000, soft=8.0, soft_steps=1_500, seed_at=400),
        steps=steps, validate_every=steps // 6, batch_size=48, choose="last",
        measures=("logistic,features=t0", "logistic,features=t0+A0"), data=DataSpec(CLEAN),
        optimiser=OptimiserSpec("adam", 1e-3, clip=1000.0, rates=("process=10",)),
        schedule=ScheduleSpec("cosine", warmup=0.01),
    )  # fmt: skip


def _em() -> Recipe:
    """Matrix capsules by EM, few of a type, so that a CPU can train them."""
    fields = {"num_types": (4, 8, 8), "num_iters": 2}
    return _small("EM-CapsNet", "em-capsnet", Classify("spread"), fields=fields, epochs=12)


ZOO = {
    "capsnet": replace(capsnet(), epochs=20),
    "convnet-avg": replace(convnet_avg(), epochs=20),
    "em-capsnet": _em(),
    "inverted": _inverted(),
    "mcae": _mcae(),
    "sparse": _sparse(),
    "generative": _generative(),
}
for name, made in ZOO.items():
    add_recipe(f"zoo/{name}", f"{made.row} on 4,000 digits, in minutes on a CPU.", made)
