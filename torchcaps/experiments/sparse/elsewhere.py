"""Fashion-MNIST and smallNORB, the paper's future work: sparse against dense capsules, two probes.

The paper prints nothing here. Probes learn from the training images as the network saw them.
"""

from torchcaps.experiments.sparse.setting import add, unsupervised
from torchcaps.experiments.tables import Column, Table, add_table

SETS = {
    "Fashion-MNIST": ("fashion-mnist", "translated:fashion-mnist"),
    "smallNORB": ("smallnorb", "smallnorb,crop=32"),
}
DATA = tuple(data for _, data in SETS.values())
MEASURES = ("linear", "knn", "kmeans", "reconstruction", "ranks")
COLUMNS = {
    "linear": Column(DATA, "linear_accuracy", note="a linear map of all capsules"),
    "neighbours": Column(DATA, "knn_accuracy"),
    "k-means": Column(DATA, "kmeans_accuracy"),
    "error": Column(DATA, "sse", 1.0, lower=True, note="squared error of an image"),
    "support 3/0": Column(DATA, "support_ratio", 1.0, lower=True),
    "who is first": Column(DATA, "first_entropy", 1.0, note="nats; evenly: 2.77"),
    "dead": Column(DATA, "dead", 1.0, digits=0, lower=True),
}
rows = {}
for title, (name, data) in SETS.items():
    for row, tail, mask in ((title, "", "rank"), (f"{title}, dense", "/dense", "none")):
        rows[row] = {}
        made = unsupervised("elsewhere", row, data=data, measures=MEASURES, mask=mask)
        add(f"{name}{tail}", f"Sparse capsules on other images, the row {row}.", made)
add_table(Table("sparse", "elsewhere", "Other images, the paper's future work", COLUMNS, rows))
