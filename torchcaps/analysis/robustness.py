"""Accuracy by the angle of rotation."""

import numpy as np

from torchcaps.analysis.charts import Line, Lines
from torchcaps.analysis.plots import Arrays, Plot, register_plot, sample_of
from torchcaps.data import Dataset
from torchcaps.metrics.robustness import accuracy_under
from torchcaps.models import Model


def accuracy_lines(curves: dict[str, tuple[np.ndarray, np.ndarray]], factor: str) -> Lines:
    """Chart of accuracies by the amount of a transformation; curves: (grid, accuracy) by name."""
    unit = {"rotation": "degrees", "shear_x": "", "shear_y": "", "scale": ""}.get(factor, "pixels")
    lines = {
        name: Line(grid, 100 * accuracy, color=n, points=True)
        for n, (name, (grid, accuracy)) in enumerate(curves.items())
    }
    return Lines(lines, f"{factor} {unit}".strip(), "test accuracy, %", 0, 101)


@register_plot("rotation")
class Rotation(Plot):
    title = "Accuracy under rotation"
    order = 30
    description = (
        "Accuracy on rotated test images. Models see rotated images in training only if their "
        "recipe rotates them."
    )
    combines = True
    needs = ("logits", "labels")

    def compute(self, model: Model, data: Dataset) -> Arrays:
        grid, accuracy = accuracy_under(model, sample_of(data, 500), "rotation")
        return {"degrees": grid, "accuracy": accuracy}

    def chart(self, arrays: dict[str, Arrays]) -> Lines:
        curves = {name: (a["degrees"], a["accuracy"]) for name, a in arrays.items()}
        return accuracy_lines(curves, "rotation")
