"""Supplement A: Aff-CapsNet with the channels of its primary capsules in other numbers of groups.

A group is a type of primary capsule. The text says that their number has no effect on robustness,
and our copy has no numbers.
"""

from torchcaps.papers.robustness.setting import MARGIN, add, on_affnist
from torchcaps.papers.robustness.table1 import COLUMNS
from torchcaps.papers.tables import Table, add_table

CHANNELS = 256
GROUPS = (8, 16, 32, 64, 128)
add_table(
    Table(
        "robustness",
        "groups",
        "Aff-CapsNet by the number of groups of its channels",
        COLUMNS,
        {str(number): {} for number in GROUPS},
    )
)
for number in GROUPS:
    fields = {"num_types": number, "pose_dim": CHANNELS // number}
    recipe = on_affnist("groups", str(number), "aff-capsnet", MARGIN, **fields)
    add(f"groups/{number}", f"Aff-CapsNet, {number} groups of {CHANNELS // number} units.", recipe)
