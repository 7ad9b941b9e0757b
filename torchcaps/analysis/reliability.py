"""Reliability diagram: accuracy by confidence."""

import numpy as np

from torchcaps.analysis.charts import Line, Lines
from torchcaps.analysis.plots import Arrays, Plot, register_plot, sample_of
from torchcaps.data import Dataset
from torchcaps.metrics.calibration import reliability
from torchcaps.models import Model


@register_plot("reliability")
class Reliability(Plot):
    title = "Reliability diagram"
    order = 32
    description = "Accuracy on test images by confidence; a calibrated model lies on the diagonal."
    combines = True
    needs = ("logits", "labels")

    def compute(self, model: Model, data: Dataset) -> Arrays:
        confidence, accuracy, count = reliability(model, sample_of(data, 2000))
        return {"confidence": confidence[count > 0], "accuracy": accuracy[count > 0]}

    def chart(self, arrays: dict[str, Arrays]) -> Lines:
        lines = {
            name: Line(values["confidence"], 100 * values["accuracy"], color=n, points=True)
            for n, (name, values) in enumerate(arrays.items())
        }
        ends = np.array([0.0, 1.0])
        lines["calibrated"] = Line(ends, 100 * ends, color=len(arrays), dash=1)
        return Lines(lines, "confidence", "test accuracy, %", 0, 101)
