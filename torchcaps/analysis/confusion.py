"""Accuracy by class, the confusion matrix, and the most confident mistakes."""

import numpy as np
import torch

from torchcaps.analysis.charts import Bars, Matrix, Shots
from torchcaps.analysis.plots import Arrays, Plot, register_plot, sample_of
from torchcaps.data import Dataset, Split
from torchcaps.metrics.accuracy import claims, confusion
from torchcaps.metrics.confusion import MAX_MISTAKES, by_class, worst_mistakes
from torchcaps.models import Model

SHOWN_CLASSES = 20
MAX_IMAGES = 2000
"""Number of test images in these plots."""


class ClassPlot(Plot):
    """Base of plots of predictions on test images."""

    needs = ("logits", "labels")

    @torch.no_grad()
    def compute(self, model: Model, data: Dataset) -> Arrays:
        arrays = self.of_predictions(model, sample_of(data, MAX_IMAGES))
        return {**arrays, "classes": np.array(data.classes)}

    def of_predictions(self, model: Model, split: Split) -> Arrays:
        raise NotImplementedError


@register_plot("classes")
class Classes(ClassPlot):
    title = "Accuracy by class"
    order = 10
    description = "Accuracy on the test images of each class, lowest first."

    def of_predictions(self, model: Model, split: Split) -> Arrays:
        accuracy, count = by_class(model, split)
        return {"accuracy": accuracy, "count": count}

    def chart_of(self, values: Arrays) -> Bars:
        order = np.argsort(values["accuracy"], kind="stable")
        order = order[values["count"][order] > 0][:SHOWN_CLASSES]
        names = [f"{values['classes'][k]} ({values['count'][k]})" for k in order]
        return Bars(names, 100 * values["accuracy"][order], "accuracy, % (images)")


@register_plot("confusion")
class Confusion(ClassPlot):
    title = "Confusion matrix"
    order = 15
    description = "Test images of each true class (row) by predicted class (column), in percent."

    def of_predictions(self, model: Model, split: Split) -> Arrays:
        return {"confusion": confusion(*claims(model, split))}

    def chart_of(self, values: Arrays) -> Matrix:
        table, classes = values["confusion"], values["classes"]
        wrong = table.sum(1) + table.sum(0) - 2 * table.diagonal()
        shown = np.sort(np.argsort(-wrong, kind="stable")[:SHOWN_CLASSES])
        share = 100 * table / table.sum(1, keepdims=True).clip(1)
        names = [str(name)[:16] for name in classes[shown]]
        return Matrix(
            share[np.ix_(shown, shown)], names, names, "predicted class", "true class", "percent",
            most=100, written=True,
        )  # fmt: skip


@register_plot("mistakes")
class Mistakes(ClassPlot):
    title = "Worst mistakes"
    order = 20
    description = "Misclassified test images and their files, the most confident first."

    def compute(self, model: Model, data: Dataset) -> Arrays:
        arrays = super().compute(model, data)
        files = [data.file_of(int(number)) for number in arrays.pop("file")]
        return {**arrays, "files": np.array(files, str)}

    def of_predictions(self, model: Model, split: Split) -> Arrays:
        return worst_mistakes(model, split, MAX_MISTAKES)

    def chart_of(self, values: Arrays) -> Shots:
        classes, captions = values["classes"], []
        for row in range(len(values["images"])):
            label, predicted = (classes[values[name][row]] for name in ("labels", "predicted"))
            confidence = f"{100 * values['confidence'][row]:.0f} %"
            file = str(values["files"][row])
            lines = [f"true: {label}", f"predicted: {predicted}, {confidence}"]
            captions.append("\n".join([*lines, *([file] if file else [])]))
        return Shots(values["images"], captions, "no mistakes on these images")
