"""How runs learn: loss and accuracy after each epoch, side by side (`mcae`, Figure 6)."""

from typing import TYPE_CHECKING, Any

from torchcaps.analysis.drawings import DASHES, Line, Lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Metrics = list[dict[str, Any]]
"""The lines of a run's metrics.jsonl."""
_AXES = ("epoch", "step", "lr")
SPLITS = {"train": "training", "val": "validation", "test": "test split"}


def series(lines: Metrics, metric: str) -> tuple[list[float], list[float]]:
    """A metric against epochs, as far as it was measured. -> epochs, values"""
    measured = [line for line in lines if metric in line]
    return [line["epoch"] + 1 for line in measured], [line[metric] for line in measured]


def metrics_of(lines: Metrics) -> list[str]:
    return [name for name in (lines[0] if lines else {}) if name not in _AXES]


def draw_curves(runs: dict[str, Metrics]) -> "dict[str, Figure]":
    """Figures of the losses, of the parts of each training loss, and of shares in per cent."""
    return {kind: drawing.figure() for kind, drawing in training_curves(runs).items()}


def training_curves(runs: dict[str, Metrics]) -> dict[str, Lines]:
    """Drawings of the losses, of the parts of each training loss, and of shares in per cent.

    A run has one colour in all of them.
    """
    losses, parts, shares = {}, {}, {}
    for place, (name, lines) in enumerate(runs.items()):
        for number, metric in enumerate(metrics_of(lines)):
            split, _, kind = metric.partition("_")
            epochs, values = series(lines, metric)
            dash = number % len(DASHES)
            if kind == "loss":
                kept = Line(epochs, values, place, 0 if split == "train" else 1)
                losses[f"{name}, {SPLITS[split]}"] = kept
            elif kind.endswith("accuracy") or kind == "exact_match":
                what = kind.removesuffix("accuracy").strip("_").replace("_", " ")
                words = (name, what, "test split" if split == "test" else "")
                percent = [100 * value for value in values]
                kept = Line(epochs, percent, place, dash if what else 0)
                shares[", ".join(filter(None, words))] = kept
            elif split == "train":
                parts[f"{name}, {kind.replace('_', ' ')}"] = Line(epochs, values, place, dash)
    drawings = {}
    for kind, found, label, log in (
        ("loss", losses, "loss", True),
        ("parts", parts, "parts of the training loss", True),
        ("accuracy", shares, "validation accuracy, %", False),
    ):
        if found:
            positive = all(v > 0 for line in found.values() for v in line.y)
            drawings[kind] = Lines(found, "epoch", label, log=log and positive, whole=True)
    return drawings
