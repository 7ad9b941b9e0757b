"""Constellations: segmentation of points into objects, with known ground truth.

Squares and triangles as points. Compared are the generative model that sums over all covers of a
scene; a Poisson process with the objects of its encoder, after EM in closed form from these, and
after EM from random starts without the encoder; and the stacked capsule autoencoder, by the code
of its authors and, "entropies of objects", by our first reading of it: free positions of points,
entropies of objects over the points that exist.
"""

from typing import NamedTuple

from torchcaps.models.registry import model_config
from torchcaps.papers.tables import Column, Table, add_table
from torchcaps.training.recipe import DataSpec, OptimizerSpec, Recipe, ScheduleSpec
from torchcaps.training.registry import add_recipe
from torchcaps.training.tasks import Elbo

DATA = "constellations"
SOLVED, ANYWHERE = f"segmentation:{DATA},solved=10", f"segmentation:{DATA},solved=30,starts=30"


class Setting(NamedTuple):
    recipe: str
    model: str
    steps: int = 10_000
    rate: float = 1e-3
    metrics: tuple[str, ...] = (f"segmentation:{DATA}",)
    fields: dict[str, str] = {}


ROWS = {
    "generative": Setting("generative", "constellation-covers", 1_000, 3e-2),
    "Poisson process": Setting(
        "process", "constellation", metrics=(f"segmentation:{DATA}", SOLVED, ANYWHERE)
    ),
    "SCAE": Setting("scae", "constellation-scae"),
    "SCAE, entropies of objects": Setting(
        "scae-objects",
        "constellation-scae",
        fields={"posterior": "objects", "patterns": "places"},
    ),
}
DERIVED = {
    "Poisson process, EM": ("Poisson process", "EM from the encoder"),
    "Poisson process, EM from 30 starts": ("Poisson process", "EM from 30 random starts"),
}
add_table(
    Table(
        "generative",
        "constellations",
        "Segmentation of points into objects",
        {"segmentation": Column((DATA,), "segmentation", note="points with the correct object")},
        {
            row: {}
            for row in (
                "generative",
                "Poisson process",
                *DERIVED,
                "SCAE",
                "SCAE, entropies of objects",
            )
        },
        derived=DERIVED,
    )
)
for row, setting in ROWS.items():
    add_recipe(
        f"generative/constellations/{setting.recipe}",
        f"Squares and triangles as points: {row}.",
        Recipe(
            paper="generative",
            table="constellations",
            row=row,
            steps=setting.steps,
            validate_every=setting.steps // 4,
            batch_size=128,
            data=DataSpec(name=DATA),
            model=model_config(setting.model, **setting.fields),
            task=Elbo(),
            choose="last",
            metrics=setting.metrics,
            optimizer=OptimizerSpec(kind="adam", lr=setting.rate, clip=10.0),
            schedule=ScheduleSpec(kind="cosine", warmup=0.01),
        ),
    )
