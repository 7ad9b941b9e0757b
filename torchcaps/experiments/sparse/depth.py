"""The claim that sparsity makes depth possible: two sparse layers against two dense ones.

The claim fails where the lower layer's support of rank 3 is above 0.8 of rank 0's. Also one change
each: ranges of frequencies that adapt online, boosts inside the routing iterations, boosts that
cannot wind up, the wider ranges of the authors' code, their support with the text's ranges, more
capsules, EM routing.
"""

from typing import Any

from torchcaps.experiments.sparse import best, table1
from torchcaps.experiments.sparse.setting import COLUMNS, MORE, add, unsupervised
from torchcaps.experiments.tables import Table, add_table
from torchcaps.train.tasks import Sparse

ROWS: dict[str, tuple[str, dict[str, Any], Sparse]] = {
    "two sparse layers": ("two-sparse", {"num_caps": (32, 16)}, Sparse()),
    "two dense layers": ("two-dense", {"num_caps": (32, 16), "mask": "none"}, Sparse()),
    "online ranges": ("online", {}, Sparse(online=True)),
    "boost in routing": ("boost-in-routing", {"boost_in_routing": True}, Sparse()),
    "relative boosts": ("relative", {}, Sparse(relative=True)),
    "code's ranges": ("code-ranges", {"low": 0.48, "high": 1.92}, Sparse()),
    "authors' support, text's ranges": ("authors-support", {"support": "authors"}, Sparse()),
    "64 capsules": ("64", {"num_caps": (64,), "gamma": 50.4}, Sparse()),
    "EM routing": ("em", {"routing": "em", "num_iters": 2}, Sparse()),
}
add_table(
    Table(
        "sparse",
        "depth",
        "Two layers, and one change at a time",
        COLUMNS,
        {"SPARSECAPS": {}, "dense": {}, **{row: {} for row in ROWS}},
        sources=("table1",),
    )
)
add_table(
    Table(
        "sparse",
        "details",
        "Errors, who comes first, what the first capsule's pose follows",
        MORE,
        {
            "SPARSECAPS": {"error": 7.75, "error, affNIST": 18.49},
            **{row: {} for row in table1.PRINTED if row in table1.OURS and row != "SPARSECAPS"},
            **{row: {} for row in (*best.ROWS, *ROWS)},
        },
        sources=("table1", "best", "depth"),
    )
)
for row, (name, fields, task) in ROWS.items():
    made = unsupervised("depth", row, task=task, **fields)
    add(f"depth/{name}", f"Sparse capsules, {row}.", made)
