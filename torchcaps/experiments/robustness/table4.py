"""Table 4: overlapping digits, one factor at a time from CapsNet; and Figure 3: training-set sizes.

Six million images are a stream of 60,000 digits x 100 partners, seen once; every row can be run on
a tenth of them too, seen twice. An image is right if the top two classes are its two digits.
"""

from typing import Any

from torchcaps.experiments.robustness.setting import MARGIN, SIGMOID, add, on_multimnist, slug
from torchcaps.experiments.tables import Column, Table, add_table

FACTORS: dict[str, tuple[dict[str, Any], float]] = {
    "CapsNet": ({}, 93.26),
    "no routing": ({"routing": "none"}, 90.07),
    "shared transform": ({"transform": "shared"}, 86.44),
    "no squashing": ({"squash": False}, 87.24),
    "plain reconstruction": ({"reconstruction": "plain"}, 93.19),
    "no reconstruction": ({"reconstruction": "none"}, 90.17),
    "binary cross entropy": ({}, 91.19),
    "ConvNet-FC(LK)": ({}, 97.11),
}
SIZES = {"60K": 1, "600K": 10, "6M": 100}
"""Training images of Figure 3 and the partners of each digit that make them."""
IN_FIGURE = ("CapsNet", "ConvNet-FC(LK)")

add_table(
    Table(
        "robustness",
        "table4",
        "Overlapping digits: both right",
        {
            "MultiMNIST": Column(("multimnist:mnist,copies=100",)),
            "600K": Column(("multimnist:mnist,copies=10",)),
        },
        {row: {"MultiMNIST": value} for row, (_, value) in FACTORS.items()},
        sources=("figure3",),
    )
)
add_table(
    Table(
        "robustness",
        "figure3",
        "Overlapping digits against the number of training images",
        {size: Column((f"multimnist:mnist,copies={n}",)) for size, n in SIZES.items()},
        {row: {} for row in IN_FIGURE},
        sources=("table4",),
    )
)


def _model(row: str) -> tuple[str, Any]:
    if row == "ConvNet-FC(LK)":
        return "convnet-fc-lk", SIGMOID
    return "capsnet", SIGMOID if row == "binary cross entropy" else MARGIN


for row, (fields, printed) in FACTORS.items():
    add(
        f"table4/{slug(row)}",
        f"Overlapping digits, {row}: {printed} % in the paper.",
        on_multimnist("table4", row, *_model(row), **fields),
    )
    place, sizes = ("figure3", ("60K", "600K")) if row in IN_FIGURE else ("table4", ("600K",))
    for size in sizes:
        add(
            f"{place}/{slug(row)}-{size.lower()}",
            f"{row} on {size} overlapping digits.",
            on_multimnist(place, row, *_model(row), copies=SIZES[size], **fields),
        )
