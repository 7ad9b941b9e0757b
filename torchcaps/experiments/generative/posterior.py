"""Poses as Normals in place of point estimates: started from these, or from the start.

The paper trains point estimates, and says that a full posterior started from them comes to a
tighter bound than one that is trained from the start. Point estimates have no bound to compare.
Deviations of objects have to grow from 0.015 to about 1, for which the common rate is slow: in rows
"quick deviations" theirs is about 0.01.
"""

from dataclasses import replace

from torchcaps.experiments.generative import table1
from torchcaps.experiments.generative.setting import METRIC, probe, unsupervised
from torchcaps.experiments.tables import Column, Table, add_table
from torchcaps.train.registry import add_recipe

DELTA = table1.ROWS["t0"]
FIRST = f"generative/table1/{DELTA.name}"
LATER = 15_000
"""Updates of the posterior that starts from point estimates, after theirs."""
ROWS = {
    "full, from Delta": ("from-delta", LATER, FIRST),
    "full, from the start": ("from-start", DELTA.steps + LATER, ""),
    "full, from Delta, quick deviations": ("from-delta-quick", LATER, FIRST),
    "full, from the start, quick deviations": ("from-start-quick", DELTA.steps + LATER, ""),
}
"""Row: its recipe's name, updates, what is trained before it."""
add_table(
    Table(
        "generative",
        "posterior",
        "Poses as point estimates and as Normals, upright digits",
        {
            "bound": Column(("mnist",), "bound", 1.0, "nats an image, four draws", digits=1),
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
        derived={"Delta": ("t0", "")},
    )
)  # fmt: skip
for row, (name, steps, before) in ROWS.items():
    made = unsupervised(
        "posterior", row, DELTA._replace(steps=steps), "mnist",
        ("bound:mnist", probe("mnist", "mnist", "t0"), probe("mnist", "mnist", "t0+A0")),
        posterior="full",
    )  # fmt: skip
    gentle = 0.3 if before else 1.0  # what is nearly there needs no more
    rates = (*made.optimiser.rates, *([f"spreads={10 / gentle:.0f}"] if "quick" in name else []))
    learned = replace(made.optimiser, lr=gentle * made.optimiser.lr, rates=rates)
    made = replace(made, before=before, start_partly=bool(before), optimiser=learned)
    add_recipe(f"generative/posterior/{name}", f"Poses as Normals: {row}.", made)
