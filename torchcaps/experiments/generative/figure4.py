"""Figure 4: trained, read and tested on MNIST turned by up to so many degrees.

In the paper objects stop meaning classes as rotations grow, of its model and of the stacked capsule
autoencoder, until both fall below a VAE. Its curves are drawn, not printed.
"""

from torchcaps.experiments.generative import table1
from torchcaps.experiments.generative.best import BEST
from torchcaps.experiments.generative.setting import (
    METRIC,
    probe,
    turned,
    unsupervised,
)
from torchcaps.experiments.tables import Column, Table, add_table
from torchcaps.train.registry import add_recipe

ROWS = {
    "t0": table1.ROWS["t0"],
    "best": BEST,
    "SCAE": table1.SCAE_24,
    "VAE": table1.ROWS["VAE"],
}
add_table(
    Table(
        "generative",
        "figure4",
        "Trained on turned digits",
        {
            str(angle): Column(
                (turned(angle),), METRIC, 1.0, "trained, read and tested on such digits",
                fit="train+val" if angle else "mnist train+val",
                tables=("figure4", "best") if angle else (),
            )
            for angle in table1.ANGLES
        },
        {row: {} for row in ("t0", "t0, A0", "best, t0", "best, t0, A0", "SCAE", "VAE")},
        sources=("table1", "best"),
        derived={
            "t0, A0": ("t0", "t0+A0"),
            "best, t0": ("best", "t0"),
            "best, t0, A0": ("best", "t0+A0"),
            "VAE": ("VAE", "mu+sigma"),
        },
        only={"VAE": ("table1", "figure4")},  # that of `best` is wider
    )
)  # fmt: skip
for row, made in ROWS.items():
    for angle in table1.ANGLES:
        if angle == (180 if row == "best" else 0):
            continue  # generative/best has that, and Table 1 the upright others
        data = turned(angle)
        measures = tuple(probe(data, "" if angle else data, key) for key in made.reads)
        add_recipe(
            f"generative/figure4/{made.name}/{angle}",
            f"Turned by up to {angle} degrees in training too: the row {row}.",
            unsupervised("figure4", row, made, data, measures),
        )
