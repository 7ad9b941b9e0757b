"""A contact sheet: a few images of every class."""

import numpy as np
import torch
from matplotlib.figure import Figure

from torchcaps.analysis.traverse import tile
from torchcaps.data import Dataset


def contact_sheet(data: Dataset, columns: int = 12, max_rows: int = 20) -> Figure:
    """Test images, a row a class (or simply the first ones, where there are no single labels)."""
    test = data.test
    rows: list[torch.Tensor] = []
    names: list[str] = []
    if test.labels.ndim == 1 and data.num_classes:
        for label in range(min(data.num_classes, max_rows)):
            found = (test.labels == label).nonzero()[:columns, 0]
            if len(found) == columns:
                rows.append(found)
                names.append(data.classes[label])
    if not rows:
        count = min(8, max(1, len(test) // columns))
        rows = list(torch.arange(min(len(test), count * columns)).split(min(columns, len(test))))
        names = [""] * len(rows)
    images = np.stack([test.batch(r).images.numpy() for r in rows])
    figure = Figure(
        figsize=(0.6 * images.shape[1] + 1.2, 0.6 * len(rows) + 0.4), layout="constrained"
    )
    axes = figure.subplots()
    axes.imshow(tile(images))
    height = images.shape[3] + 1
    axes.set_yticks([height * (i + 0.5) for i in range(len(names))], names, fontsize=8)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.set_title(f"{data.name}, {len(test):,} test images", fontsize=9)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure
