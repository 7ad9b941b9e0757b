"""Fashion-MNIST and smallNORB, the paper's future work: sparse against dense capsules.

The paper prints no values. Probes are fitted on the network's training images.
"""

from torchcaps.papers.sparse.setting import add, unsupervised
from torchcaps.papers.tables import Column, Table, add_table

SETS = {
    "Fashion-MNIST": ("fashion-mnist", "translated:fashion-mnist"),
    "smallNORB": ("smallnorb", "smallnorb,crop=32"),
}
DATA = tuple(data for _, data in SETS.values())
METRICS = ("linear", "knn", "kmeans", "reconstruction", "ranks")
COLUMNS = {
    "linear": Column(DATA, "linear_accuracy", note="ridge probe on all capsules"),
    "neighbours": Column(DATA, "knn_accuracy"),
    "k-means": Column(DATA, "kmeans_accuracy"),
    "error": Column(DATA, "sse", 1.0, lower=True, note="squared error of an image"),
    "support 3/0": Column(DATA, "support_ratio", 1.0, lower=True),
    "who is first": Column(DATA, "first_entropy", 1.0, note="nats; 2.77 if uniform"),
    "dead": Column(DATA, "dead", 1.0, digits=0, lower=True),
}
rows = {}
for title, (name, data) in SETS.items():
    for row, tail, mask in ((title, "", "rank"), (f"{title}, dense", "/dense", "none")):
        rows[row] = {}
        recipe = unsupervised("elsewhere", row, data=data, metrics=METRICS, mask=mask)
        add(f"{name}{tail}", f"Sparse capsules on other datasets: {row}.", recipe)
add_table(
    Table("sparse", "elsewhere", "Sparse capsules on Fashion-MNIST and smallNORB", COLUMNS, rows)
)
