"""How runs learn: loss and accuracy after each epoch, side by side (`mcae`, Figure 6)."""

from typing import TYPE_CHECKING, Any

from torchcaps.analysis.figure import styled_plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Lines = list[dict[str, Any]]
"""The lines of a run's metrics.jsonl."""
_AXES = ("epoch", "step", "lr")
SPLITS = {"train": "training", "val": "validation", "test": "test split"}
STYLES = ("-", "--", "-.", ":")


def series(lines: Lines, metric: str) -> tuple[list[float], list[float]]:
    """A metric against epochs, as far as it was measured. -> epochs, values"""
    measured = [line for line in lines if metric in line]
    return [line["epoch"] + 1 for line in measured], [line[metric] for line in measured]


def metrics_of(lines: Lines) -> list[str]:
    return [name for name in (lines[0] if lines else {}) if name not in _AXES]


def draw_curves(runs: dict[str, Lines]) -> "dict[str, Figure]":
    """Figures of the losses, of the parts of each training loss, and of shares in per cent.

    A run has one colour in all of them.
    """
    losses, parts, shares = {}, {}, {}
    for place, (name, lines) in enumerate(runs.items()):
        colour = {"color": f"C{place}"}
        for number, metric in enumerate(metrics_of(lines)):
            split, _, kind = metric.partition("_")
            epochs, values = series(lines, metric)
            dashed = {**colour, "linestyle": STYLES[number % len(STYLES)]}
            if kind == "loss":
                train = split == "train"
                style = {**colour, "linestyle": "-" if train else "--"}
                losses[f"{name}, {SPLITS[split]}"] = (epochs, values, style)
            elif kind.endswith("accuracy") or kind == "exact_match":
                what = kind.removesuffix("accuracy").strip("_").replace("_", " ")
                words = (name, what, "test split" if split == "test" else "")
                style = dashed if what else colour
                percent = [100 * value for value in values]
                shares[", ".join(filter(None, words))] = (epochs, percent, style)
            elif split == "train":
                parts[f"{name}, {kind.replace('_', ' ')}"] = (epochs, values, dashed)
    figures = {}
    for kind, found, label, scale in (
        ("loss", losses, "loss", "log"),
        ("parts", parts, "parts of the training loss", "log"),
        ("accuracy", shares, "validation accuracy, %", "linear"),
    ):
        if found:
            positive = all(v > 0 for _, values, _ in found.values() for v in values)
            figure = styled_plot(found, "epoch", label, yscale=scale if positive else "linear")
            locator: Any = figure.axes[0].xaxis.get_major_locator()
            locator.set_params(integer=True, min_n_ticks=1)
            figures[kind] = figure
    return figures
