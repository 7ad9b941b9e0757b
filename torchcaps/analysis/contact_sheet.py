"""A contact sheet: a few images of every class."""

from typing import TYPE_CHECKING

import numpy as np
import torch

from torchcaps.analysis.matplotlib_figures import image_grid
from torchcaps.data import Dataset

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def contact_sheet(data: Dataset, columns: int = 12, max_rows: int = 20) -> "Figure":
    """Test images, one row per class; without single labels the first images of the split."""
    test = data.test
    rows: list[torch.Tensor] = []
    names: list[str] = []
    if test.labels.ndim == 1 and data.num_classes:
        for label in range(min(data.num_classes, max_rows)):
            members = (test.labels == label).nonzero()[:columns, 0]
            if len(members) == columns:
                rows.append(members)
                names.append(data.classes[label])
    if not rows:
        count = min(8, max(1, len(test) // columns))
        rows = list(torch.arange(min(len(test), count * columns)).split(min(columns, len(test))))
        rows = [row for row in rows if len(row) == len(rows[0])]
        names = [""] * len(rows)
    figure = image_grid(np.stack([test.batch(r).images.numpy() for r in rows]), names)
    figure.axes[0].set_title(f"{data.name}, {len(test):,} test images", fontsize=9)
    return figure
