"""Recipes of the bundled weights: one small model of each family, trained on the embedded digits.

`create_model("capsnet-small.digits", pretrained=True)`. Each was trained on a CPU by its recipe and
is stored in half precision. Its folder in `torchcaps/weights/` contains the record of that run
(`python scripts/bundle_weights.py RUN`).
"""

from dataclasses import replace
from typing import Any

from torchcaps.models.registry import model_config
from torchcaps.training.demo import CLEAN, TRANSFORMED, capsnet, convnet_avg
from torchcaps.training.recipe import DataSpec, OptimizerSpec, Recipe, ScheduleSpec
from torchcaps.training.registry import add_recipe
from torchcaps.training.tasks import Classify, Elbo, Masked, Sparse, TaskConfig

AFFINE = "affine:15,shear=0.2,min_scale=0.85,max_scale=1.15"
SHIFTED = DataSpec(name=CLEAN, augment=("translate:2",))


def _small(row: str, model: str, task: TaskConfig, **options: Any) -> Recipe:
    """Recipe with small shifts and affine maps, Adam and a one-cycle schedule."""
    defaults: dict[str, Any] = {
        "epochs": 20, "batch_size": 40, "metrics": (f"accuracy:{TRANSFORMED}",),
        "optimizer": OptimizerSpec(kind="adam", lr=3e-3, ema=0.99),
        "schedule": ScheduleSpec(kind="one_cycle"),
        "data": DataSpec(name=CLEAN, augment=("translate:2", AFFINE)),
    }  # fmt: skip
    return Recipe(row=row, model=model_config(model), task=task, **{**defaults, **options})


ZOO = {
    "capsnet": replace(capsnet(), epochs=20),
    "convnet-avg": replace(convnet_avg(), epochs=20),
    "em-capsnet": _small("EM-CapsNet", "em-capsnet-small", Classify(loss="spread"), epochs=12),
    "inverted": _small("inverted", "inverted-small", Classify(loss="cross_entropy"), epochs=12),
    "mcae": _small(
        "MCAE", "mcae-pretrain-small", Masked(), epochs=25, batch_size=50,
        metrics=("linear", "knn"), data=SHIFTED, choose="last",
        optimizer=OptimizerSpec(kind="adamw", lr=2e-3, weight_decay=0.05, decay_all=False),
    ),
    "sparse": _small(
        "sparse", "sparse-small", Sparse(), epochs=25, batch_size=50, choose="last",
        metrics=("linear", "kmeans", "ranks"), data=SHIFTED,
    ),
    "generative": _small(
        "generative", "generative-one-small",
        Elbo(usage=10.0, usage_steps=2_000, soft=8.0, soft_steps=1_500, seed_at=400),
        steps=3_000, validate_every=500, batch_size=48, choose="last",
        metrics=("logistic,features=t0", "logistic,features=t0+A0"), data=DataSpec(name=CLEAN),
        optimizer=OptimizerSpec(kind="adam", lr=1e-3, clip=1000.0, rates=("process=10",)),
        schedule=ScheduleSpec(kind="cosine", warmup=0.01),
    ),
}  # fmt: skip
"""Recipes `zoo/NAME`; the weights are named after the model, with the tag `digits`."""
for name, recipe in ZOO.items():
    add_recipe(f"zoo/{name}", f"{recipe.row} on 4,000 digits, minutes on a CPU.", recipe)
