"""Quality of each pretraining: accuracy of a ridge probe on frozen capsules."""

from torchcaps.papers.mcae.ablations import VARIANTS
from torchcaps.papers.mcae.setting import SETTINGS
from torchcaps.papers.tables import Column, Table, add_table

ROWS = (
    "", "large patches", *VARIANTS, "best", "best, deep", "best, large patches", "best, ViT",
    "few labels",
)  # fmt: skip
add_table(
    Table(
        "mcae",
        "pretraining",
        "Ridge probe on frozen capsules after pretraining",
        {name: Column((s.data,), "linear_accuracy") for name, s in SETTINGS.items()},
        {"pretraining" + (row and f", {row}"): {} for row in ROWS},
    )
)
