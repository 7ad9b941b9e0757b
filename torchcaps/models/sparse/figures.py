"""Plots of ranked capsules: support by rank, and how often each capsule has each rank."""

import numpy as np
import torch

from torchcaps.analysis.charts import Line, Lines, Matrix
from torchcaps.analysis.plots import Arrays, Plot, few, register_plot, sample_of
from torchcaps.data import Dataset
from torchcaps.errors import TorchcapsError
from torchcaps.metrics.ranks import (
    rank_frequencies,
    ranked_layers,
    support_and_rank,
    support_by_rank,
)
from torchcaps.models import Model

MAX_IMAGES = 2000


class RankPlot(Plot):
    """Base of plots of ranked capsules."""

    @torch.no_grad()
    def lacks(self, model: Model, data: Dataset) -> str:
        try:
            support_and_rank(model.encode(few(data, 2).images, coupling=True))
        except TorchcapsError as error:
            return str(error)
        return ""


@register_plot("support")
class Support(RankPlot):
    title = "Support by rank"
    order = 70
    description = (
        "Routing support of the capsules of a layer, sorted for each image, averaged, and divided "
        "by that of the first: flat if the routing uses all capsules equally."
    )
    combines = True

    def compute(self, model: Model, data: Dataset) -> Arrays:
        layers = ranked_layers(model, sample_of(data, MAX_IMAGES))
        names = [""] if len(layers) == 1 else [f", layer {n + 1}" for n in range(len(layers))]
        curves = (support_by_rank(support).cpu().numpy() for support, _ in layers)
        return dict(zip(names, curves, strict=True))

    def chart(self, arrays: dict[str, Arrays]) -> Lines:
        curves = [
            (name + layer, curve)
            for name, values in arrays.items()
            for layer, curve in values.items()
        ]
        lines = {
            name: Line(np.arange(len(curve)), curve, color=n, points=True)
            for n, (name, curve) in enumerate(curves)
        }
        return Lines(lines, "rank", "support, first = 1", 0, 1.05, whole=True)


@register_plot("ranks")
class RankFrequencies(RankPlot):
    title = "Capsule rank frequencies"
    order = 71
    description = "How often each capsule of the last layer (a row) has each rank (a column)."

    def compute(self, model: Model, data: Dataset) -> Arrays:
        return {"frequency": rank_frequencies(model, sample_of(data, MAX_IMAGES)).cpu().numpy()}

    def chart_of(self, values: Arrays) -> Matrix:
        names = [str(n) for n in range(len(values["frequency"]))]
        return Matrix(values["frequency"], names, names, "rank", "capsule", "share of images")
