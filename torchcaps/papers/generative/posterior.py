"""Poses as Normals instead of point estimates: fine-tuned from these, or trained from scratch.

The paper trains point estimates and reports that a full posterior fine-tuned from them reaches a
tighter bound than one trained from scratch. Point estimates have no comparable bound. Standard
deviations of objects have to grow from 0.015 to about 1, which is slow at the common learning rate:
in rows "quick deviations" theirs is about 0.01.
"""

from dataclasses import replace

from torchcaps.papers.generative import table1
from torchcaps.papers.generative.setting import METRIC, probe, unsupervised
from torchcaps.papers.tables import Column, Table, add_table
from torchcaps.training.registry import add_recipe

DELTA = table1.ROWS["encoding per object, t0"]
FIRST = f"generative/table1/{DELTA.name}"
LATER = 15_000
"""Updates after those of the point estimates."""
ROWS = {
    "full, from Delta": ("from-delta", LATER, FIRST),
    "full, from the start": ("from-start", DELTA.steps + LATER, ""),
    "full, from Delta, quick deviations": ("from-delta-quick", LATER, FIRST),
    "full, from the start, quick deviations": ("from-start-quick", DELTA.steps + LATER, ""),
}
"""Row: name of its recipe, updates, recipe that is trained before it."""
add_table(
    Table(
        "generative",
        "posterior",
        "Poses as point estimates and as Normals, upright digits",
        {
            "bound": Column(("mnist",), "bound", 1.0, "nats per image, four samples", digits=1),
            "error": Column(("mnist",), "error", 1.0, "squared error of an image", lower=True),
            "t0": Column(
                ("mnist",), METRIC, 1.0, "probe on upright MNIST", fit="mnist train+val",
                features=("", "t0"),
            ),
            "t0, A0": Column(
                ("mnist",), METRIC, 1.0, "probe on upright MNIST", fit="mnist train+val",
                features=("t0+A0",),
            ),
        },
        {"Delta": {}, **{row: {} for row in ROWS}},
        sources=("table1",),
        derived={"Delta": ("encoding per object, t0", "")},
    )
)  # fmt: skip
for row, (name, steps, before) in ROWS.items():
    recipe = unsupervised(
        "posterior", row, DELTA._replace(steps=steps), "mnist",
        ("bound:mnist", probe("mnist", "mnist", "t0"), probe("mnist", "mnist", "t0+A0")),
        posterior="full",
    )  # fmt: skip
    factor = 0.3 if before else 1.0  # lower learning rate for fine-tuning
    rates = (*recipe.optimizer.rates, *([f"spreads={10 / factor:.0f}"] if "quick" in name else []))
    optimizer = replace(recipe.optimizer, lr=factor * recipe.optimizer.lr, rates=rates)
    recipe = replace(recipe, before=before, start_partly=bool(before), optimizer=optimizer)
    add_recipe(f"generative/posterior/{name}", f"Poses as Normals: {row}.", recipe)
