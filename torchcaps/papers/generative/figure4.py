"""Figure 4: trained, probed and tested on MNIST rotated by up to an angle.

In the paper the objects of its model and of the stacked capsule autoencoder lose their relation to
classes as rotations grow, until both are below a VAE. The values of its curves are not printed.
"""

from torchcaps.papers.generative import table1
from torchcaps.papers.generative.best import BEST
from torchcaps.papers.generative.setting import METRIC, probe, rotated, two_rows, unsupervised
from torchcaps.papers.tables import Column, Table, add_table
from torchcaps.training.registry import add_recipe

ROWS = {
    "t0": table1.ROWS["t0"],
    "encoding per object, t0": table1.ROWS["encoding per object, t0"],
    "best": BEST,
    **table1.SCAE_24,
    "VAE": table1.ROWS["VAE"],
}
add_table(
    Table(
        "generative",
        "figure4",
        "Trained and tested on rotated digits",
        {
            str(angle): Column(
                (rotated(angle),), METRIC, 1.0, "trained, probed and tested at this angle",
                fit="train+val" if angle else "mnist train+val",
                tables=("figure4", "best") if angle else (),
            )
            for angle in table1.ANGLES
        },
        {
            row: {}
            for row in (
                "t0", "t0, A0", "best, t0", "best, t0, A0", "SCAE", "SCAE, rotated last", "VAE",
                "encoding per object, t0", "encoding per object, t0, A0",
            )
        },
        sources=("table1", "best"),
        derived={
            **two_rows("t0"),
            "encoding per object, t0, A0": ("encoding per object, t0", "t0+A0"),
            "best, t0": ("best", "t0"),
            "best, t0, A0": ("best", "t0+A0"),
            "VAE": ("VAE", "mu+sigma"),
        },
        only={"VAE": ("table1", "figure4")},  # the VAE of `best` is wider
    )
)  # fmt: skip
for row, setting in ROWS.items():
    for angle in table1.ANGLES:
        if angle == (180 if row == "best" else 0):
            continue  # recipes of generative/best and, upright, of Table 1
        data = rotated(angle)
        metrics = tuple(probe(data, "" if angle else data, key) for key in setting.features)
        add_recipe(
            f"generative/figure4/{setting.name}/{angle}",
            f"Trained on digits rotated by up to {angle} degrees: {row}.",
            unsupervised("figure4", row, setting, data, metrics),
        )
