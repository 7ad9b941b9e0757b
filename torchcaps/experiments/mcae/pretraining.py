"""What each pretraining has learned: a linear probe's accuracy on frozen capsules."""

from torchcaps.experiments.mcae.ablations import VARIANTS
from torchcaps.experiments.mcae.setting import SETTINGS
from torchcaps.experiments.tables import Column, Table, add_table

ROWS = (
    "", "large patches", *VARIANTS, "best", "best, deep", "best, large patches", "best, ViT",
    "few labels",
)  # fmt: skip
add_table(
    Table(
        "mcae",
        "pretraining",
        "A linear probe on frozen capsules, after pretraining",
        {name: Column((s.data,), "linear_accuracy") for name, s in SETTINGS.items()},
        {"pretraining" + (row and f", {row}"): {} for row in ROWS},
    )
)
