"""Two sparse layers against two dense layers, and ablations.

The paper claims that sparsity enables depth; the claim fails if the lower layer's support of rank 3
is above 0.8 of that of rank 0. Ablations: online frequency ranges, boosts inside the routing
iterations, relative boosts, the wider ranges of the authors' code, their support with the paper's
ranges, more capsules, EM routing.
"""

from typing import Any

from torchcaps.papers.sparse import best, table1
from torchcaps.papers.sparse.setting import COLUMNS, MORE, add, unsupervised
from torchcaps.papers.tables import Table, add_table
from torchcaps.training.tasks import Sparse

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
        "Two layers, and ablations of sparse capsules",
        COLUMNS,
        {"SPARSECAPS": {}, "dense": {}, **{row: {} for row in ROWS}},
        sources=("table1",),
    )
)
add_table(
    Table(
        "sparse",
        "details",
        "Reconstruction errors, ranks, and equivariance of the first capsule",
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
    recipe = unsupervised("depth", row, task=task, **fields)
    add(f"depth/{name}", f"Sparse capsules, {row}.", recipe)
