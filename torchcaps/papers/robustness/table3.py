"""Table 3: kernel sizes from 3 to 11 for three models. Three rows reuse the runs of Table 1."""

from torchcaps.papers.robustness.setting import MARGIN, SOFTMAX, add, on_affnist
from torchcaps.papers.robustness.table1 import COLUMNS
from torchcaps.papers.tables import Table, add_table

PRINTED: dict[str, dict[int, tuple[float, float] | None]] = {
    "CapsNet": {3: (96.31, 61.36), 5: (98.18, 70.34), 7: (98.74, 75.82), 9: (99.26, 79.12),
                11: (99.1, 86.79)},
    "ConvNet-FC": {3: (96.54, 64.57), 5: (99.23, 66.08), 7: (99.03, 66.76), 9: None, 11: None},
    "ConvNet-Avg": {3: (97.14, 86.58), 5: (98.58, 90.95), 7: (99.1, 92.31), 9: (99.22, 94.11),
                    11: (99.34, 90.58)},
}  # fmt: skip
IN_TABLE_1 = {
    "CapsNet, 9x9": "CapsNet",
    "ConvNet-FC, 5x5": "ConvNet-FC",
    "ConvNet-Avg, 9x9": "ConvNet-Avg",
}
TABLE = add_table(
    Table(
        "robustness",
        "table3",
        "Kernel sizes",
        COLUMNS,
        {
            f"{model}, {side}x{side}": {"MNIST": value[0], "affNIST": value[1]} if value else {}
            for model, values in PRINTED.items()
            for side, value in values.items()
        },
        sources=("table1",),
        derived={row: (name, "") for row, name in IN_TABLE_1.items()},
    )
)

for model, values in PRINTED.items():
    for side, value in values.items():
        row = f"{model}, {side}x{side}"
        if row in IN_TABLE_1:
            continue
        name, task = model.lower(), MARGIN if model == "CapsNet" else SOFTMAX
        claim = f"{value[1]} % on affNIST in the paper" if value else "not printed in the paper"
        recipe = on_affnist("table3", row, name, task, kernel_size=side)
        add(f"table3/{name}-k{side}", f"{model} with kernels of {side}: {claim}.", recipe)
