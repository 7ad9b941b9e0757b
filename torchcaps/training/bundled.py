"""Recipes of the bundled weights: one small model of each family, trained on the embedded digits.

`create_model("capsnet-small.digits", pretrained=True)`. Each was trained on a CPU by its recipe and
is stored in half precision. Its folder in `torchcaps/weights/` contains the record of that run
(`python scripts/bundle_weights.py RUN`).
"""

from dataclasses import replace

from torchcaps.training.demo import CLEAN, SHIFTED, capsnet, convnet_avg, small_recipe
from torchcaps.training.recipe import DataSpec, OptimizerSpec, ScheduleSpec
from torchcaps.training.registry import add_recipe
from torchcaps.training.tasks import Classify, Elbo, Masked, Sparse

ZOO = {
    "capsnet": replace(capsnet(), epochs=20),
    "convnet-avg": replace(convnet_avg(), epochs=20),
    "em-capsnet": small_recipe(
        "EM-CapsNet", "em-capsnet-small", Classify(loss="spread"), epochs=12,
    ),
    "inverted": small_recipe(
        "inverted", "inverted-small", Classify(loss="cross_entropy"), epochs=12,
    ),
    "mcae": small_recipe(
        "MCAE", "mcae-pretrain-small", Masked(), epochs=25, batch_size=50,
        metrics=("linear", "knn"), data=SHIFTED, choose="last",
        optimizer=OptimizerSpec(kind="adamw", lr=2e-3, weight_decay=0.05, decay_all=False),
    ),
    "sparse": small_recipe(
        "sparse", "sparse-small", Sparse(), epochs=25, batch_size=50, choose="last",
        metrics=("linear", "kmeans", "ranks"), data=SHIFTED,
    ),
    "generative": small_recipe(
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
