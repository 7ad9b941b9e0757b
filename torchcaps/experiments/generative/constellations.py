"""Constellations: which points belong together, where the truth is known.

Squares and triangles as points. The generative model's objects, as the encoder finds them and after
EM in closed form; EM from random starts with the patterns that were learned, without the encoder;
and the stacked capsule autoencoder on the same scenes.
"""

from torchcaps.experiments.tables import Column, Table, add_table
from torchcaps.models.registry import model_config
from torchcaps.train.recipe import DataSpec, OptimiserSpec, Recipe, ScheduleSpec
from torchcaps.train.registry import add_recipe
from torchcaps.train.tasks import Elbo

DATA = "constellations"
SOLVED, ANYWHERE = f"segmentation:{DATA},solved=10", f"segmentation:{DATA},solved=30,starts=30"
ROWS = {
    "generative": ("generative", "constellation", (f"segmentation:{DATA}", SOLVED, ANYWHERE)),
    "SCAE": ("scae", "constellation-scae", (f"segmentation:{DATA}",)),
}
add_table(
    Table(
        "generative",
        "constellations",
        "Which points belong together",
        {"segmentation": Column((DATA,), "segmentation", note="points with the right object")},
        {row: {} for row in ("generative", "generative, EM", "EM from 30 starts", "SCAE")},
        derived={
            "generative, EM": ("generative", "EM from the encoder"),
            "EM from 30 starts": ("generative", "EM from 30 random starts"),
        },
    )
)
for row, (name, model, measures) in ROWS.items():
    add_recipe(
        f"generative/constellations/{name}",
        f"Squares and triangles as points: {row}.",
        Recipe(
            paper="generative",
            table="constellations",
            row=row,
            steps=10_000,
            validate_every=2_500,
            batch_size=128,
            data=DataSpec(DATA),
            model=model_config(model),
            task=Elbo(),
            choose="last",
            measures=measures,
            optimiser=OptimiserSpec("adam", 1e-3, clip=10.0),
            schedule=ScheduleSpec("cosine", warmup=0.01),
        ),
    )
