"""Table 5: compactness of the class units; Figure 4 traverses the same models.

    torchcaps train robustness/table5/capsnet --record
    torchcaps measure runs/robustness-table5-capsnet-s0 --record

The second command computes the scores (`metrics.compactness`) on the test split. `table5-pooled`
scores the mean of the shares over images, which has the order of magnitude of the printed scores.
No reading of the paper's definition gives its scores, so tables do not compare with them.
"""

from torchcaps.papers.robustness.setting import MARGIN, SIGMOID, SOFTMAX, add, on_plain
from torchcaps.papers.tables import Column, Table, add_table

FACTORS = ("rotation", "shift_x", "shift_y", "scale", "shear_x", "shear_y")
PRINTED = {
    "ConvNet-R": (0.0003, 0.0016, 0.0009, 0.0004, 0.0003, 0.0007),
    "ConvNet-CR": (0.0028, 0.0038, 0.0032, 0.0052, 0.0058, 0.0022),
    "ConvNet-CR-SF": (0.0325, 0.2010, 0.3192, 0.0146, 0.0476, 0.0506),
    "CapsNet": (0.0031, 0.0107, 0.0464, 0.0026, 0.0098, 0.0021),
}
LOSSES = {"ConvNet-R": SOFTMAX, "ConvNet-CR": SIGMOID, "ConvNet-CR-SF": MARGIN, "CapsNet": MARGIN}

add_table(
    Table(
        "robustness",
        "table5-pooled",
        "Compactness of the units' mean shares, mnist",
        {f: Column(("mnist",), f"compactness_pooled_{f}", 1.0, digits=4) for f in FACTORS},
        {row: dict(zip(FACTORS, values, strict=True)) for row, values in PRINTED.items()},
        sources=("table5",),
        unlike=FACTORS,
    )
)
for data, name in (("mnist", "table5"), ("fashion-mnist", "table5-fashion")):
    add_table(
        Table(
            "robustness",
            name,
            f"Compactness of the class units, {data}",
            {f: Column((data,), f"compactness_{f}", 1.0, digits=4) for f in FACTORS},
            {
                row: dict(zip(FACTORS, values, strict=True)) if data == "mnist" else {}
                for row, values in PRINTED.items()
            },
            unlike=FACTORS,
        )
    )
    for row in PRINTED:
        add(
            f"{name}/{row.lower()}",
            f"{row} on {data}, for the compactness of its units.",
            on_plain(name, row, data, row.lower(), LOSSES[row]),
        )
