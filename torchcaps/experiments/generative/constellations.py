"""Constellations: which points belong together, where the truth is known.

Squares and triangles as points. The generative model that sums over all covers of a scene; one that
is a Poisson process, its objects as an encoder finds them and after EM in closed form, and EM from
random starts with the patterns that it learned, without the encoder; and the stacked capsule
autoencoder on the same scenes.
"""

from typing import NamedTuple

from torchcaps.experiments.tables import Column, Table, add_table
from torchcaps.models.registry import model_config
from torchcaps.train.recipe import DataSpec, OptimiserSpec, Recipe, ScheduleSpec
from torchcaps.train.registry import add_recipe
from torchcaps.train.tasks import Elbo

DATA = "constellations"
SOLVED, ANYWHERE = f"segmentation:{DATA},solved=10", f"segmentation:{DATA},solved=30,starts=30"


class Setting(NamedTuple):
    recipe: str
    model: str
    steps: int = 10_000
    rate: float = 1e-3
    measures: tuple[str, ...] = (f"segmentation:{DATA}",)


ROWS = {
    "generative": Setting("generative", "constellation-covers", 1_000, 3e-2),
    "Poisson process": Setting(
        "process", "constellation", measures=(f"segmentation:{DATA}", SOLVED, ANYWHERE)
    ),
    "SCAE": Setting("scae", "constellation-scae"),
}
DERIVED = {
    "Poisson process, EM": ("Poisson process", "EM from the encoder"),
    "Poisson process, EM from 30 starts": ("Poisson process", "EM from 30 random starts"),
}
add_table(
    Table(
        "generative",
        "constellations",
        "Which points belong together",
        {"segmentation": Column((DATA,), "segmentation", note="points with the right object")},
        {row: {} for row in ("generative", "Poisson process", *DERIVED, "SCAE")},
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
            data=DataSpec(DATA),
            model=model_config(setting.model),
            task=Elbo(),
            choose="last",
            measures=setting.measures,
            optimiser=OptimiserSpec("adam", setting.rate, clip=10.0),
            schedule=ScheduleSpec("cosine", warmup=0.01),
        ),
    )
