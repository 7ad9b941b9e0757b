"""Training curves: loss and accuracy of runs after each epoch (`mcae`, Figure 6)."""

from typing import TYPE_CHECKING, Any

from torchcaps.analysis.charts import DASHES, Line, Lines
from torchcaps.analysis.plots import Arrays, Plot, Subject, register_plot
from torchcaps.errors import TorchcapsError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Metrics = list[dict[str, Any]]
"""The lines of a run's metrics.jsonl."""
_AXES = ("epoch", "step", "lr")
SPLITS = {"train": "training", "val": "validation", "test": "test split"}


def series(lines: Metrics, metric: str) -> tuple[list[float], list[float]]:
    """A metric by epoch, for the epochs that measured it. -> epochs, values"""
    measured = [line for line in lines if metric in line]
    return [line["epoch"] + 1 for line in measured], [line[metric] for line in measured]


def metrics_of(lines: Metrics) -> list[str]:
    """Names of the metrics of a run."""
    return [name for name in (lines[0] if lines else {}) if name not in _AXES]


def plot_curves(runs: dict[str, Metrics]) -> "dict[str, Figure]":
    """Figures of the losses, of the terms of each training loss, and of accuracies in percent."""
    return {kind: chart.figure() for kind, chart in training_curves(runs).items()}


def training_curves(runs: dict[str, Metrics]) -> dict[str, Lines]:
    """Charts of the losses, of the terms of each training loss, and of accuracies in percent.

    A run has the same color in all of them.
    """
    losses, terms, accuracies = {}, {}, {}
    for color, (name, lines) in enumerate(runs.items()):
        for number, metric in enumerate(metrics_of(lines)):
            split, _, kind = metric.partition("_")
            epochs, values = series(lines, metric)
            dash = number % len(DASHES)
            if kind == "loss":
                line = Line(epochs, values, color, 0 if split == "train" else 1)
                losses[f"{name}, {SPLITS[split]}"] = line
            elif kind.endswith("accuracy") or kind == "exact_match":
                what = kind.removesuffix("accuracy").strip("_").replace("_", " ")
                label = (name, what, "test split" if split == "test" else "")
                percent = [100 * value for value in values]
                line = Line(epochs, percent, color, dash if what else 0)
                accuracies[", ".join(filter(None, label))] = line
            elif split == "train":
                terms[f"{name}, {kind.replace('_', ' ')}"] = Line(epochs, values, color, dash)
    charts = {}
    for kind, curves, ylabel, log in (
        ("loss", losses, "loss", True),
        ("parts", terms, "terms of the training loss", True),
        ("accuracy", accuracies, "validation accuracy, %", False),
    ):
        if curves:
            positive = all(v > 0 for line in curves.values() for v in line.y)
            charts[kind] = Lines(curves, "epoch", ylabel, log=log and positive, whole=True)
    return charts


@register_plot("curves")
class Curves(Plot):
    title = "Training curves"
    order = -1  # a report has a section of its own for them
    description = "Losses and validation accuracy after each epoch, of finished runs or not."
    combines = True

    def arrays(self, subject: Subject) -> Any:
        if not subject.metrics:
            raise TorchcapsError(f"{subject.name} has no finished epoch to plot.")
        return subject.metrics

    def figures(self, arrays: dict[str, Arrays]) -> "dict[str, Figure]":
        return {"" if k == "loss" else k: f for k, f in plot_curves(arrays).items()}  # pyright: ignore
