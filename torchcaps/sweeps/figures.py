"""Figures of a sweep as data: parallel coordinates, importance of fields, learning curves."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from torchcaps.analysis.charts import Bars, Chart, Line, Lines
from torchcaps.sweeps.folder import Sweep, Trial, objective
from torchcaps.sweeps.space import Range

BINS = 4
"""Bins of a range, of equal numbers of trials, for its importance."""
COLORS = 4
"""Ranks are shown in so many colors: the best quarter of trials has the first."""
MOST = 30
"""Most trials in a figure: the best ones."""


def charts(sweep: Sweep) -> dict[str, Chart]:
    """The figures that the trials so far allow."""
    trials = sweep.ranked
    figures: dict[str, Chart] = {}
    if len(trials) > 1:
        figures["parallel coordinates"] = parallel_coordinates(sweep, trials[:MOST])
    if shares := importance(sweep):
        percent = [100 * value for value in shares.values()]
        figures["importance"] = Bars(list(shares), percent, "variance explained, %")
    if curves := learning_curves(sweep, trials[:MOST]):
        figures["learning curves"] = curves
    return figures


def _positions(values: Sequence[Any], axis: tuple[Any, ...] | Range) -> list[float]:
    """Positions of values on an axis from 0 to 1."""
    if not isinstance(axis, Range):
        return [axis.index(value) / max(1, len(axis) - 1) for value in values]
    scale = np.log if axis.log else np.asarray
    low, high = float(scale(axis.low)), float(scale(axis.high))
    return [(float(scale(value)) - low) / (high - low) for value in values]


def parallel_coordinates(sweep: Sweep, trials: Sequence[Trial]) -> Lines:
    """A line for each trial over the fields, which are the whole numbers of x; at the last one its
    rank from 0, the worst, to 1.
    """
    space = sweep.settings.space
    columns = [_positions([t.values[field] for t in trials], axis) for field, axis in space.items()]
    ranks = np.linspace(1, 0, len(trials))
    names = [*space, f"rank by {objective(sweep.settings.recipe)}"]
    label = " · ".join(f"{number} {name}" for number, name in enumerate(names, 1))
    lines = {}
    for row, trial in enumerate(trials):
        y = [*(column[row] for column in columns), float(ranks[row])]
        name = f"{trial.folder.name}: {trial.value:.4g}"
        color = row * COLORS // len(trials)
        lines[name] = Line(list(range(1, len(y) + 1)), y, color, points=True)
    return Lines(lines, label, "low to high", low=-0.02, high=1.02, whole=True)


def importance(sweep: Sweep) -> dict[str, float]:
    """The share of the variance of validation values that each field alone explains.

    The correlation ratio (one-way analysis of variance) over values or four bins of a range,
    corrected for the number of groups, so that a field without influence has 0 on average.
    """
    trials = sweep.ranked
    values = np.array([trial.value for trial in trials], dtype=np.float64)
    total = float(((values - values.mean()) ** 2).sum()) if len(values) else 0.0
    shares = {}
    for field, axis in sweep.settings.space.items():
        groups = _groups([trial.values[field] for trial in trials], axis)
        count = len(set(groups))
        if count < 2 or len(values) <= count or not total:
            continue
        within = sum(
            float(((values[groups == g] - values[groups == g].mean()) ** 2).sum())
            for g in np.unique(groups)
        )
        share = 1 - within / (len(values) - count) / (total / (len(values) - 1))
        shares[field] = round(max(0.0, share), 4)
    return shares


def _groups(values: Sequence[Any], axis: tuple[Any, ...] | Range) -> np.ndarray:
    if not isinstance(axis, Range):
        return np.array([axis.index(value) for value in values])
    ranks = np.argsort(np.argsort(np.array(values, dtype=np.float64), kind="stable"))
    bins = min(BINS, len(values) // 2) or 1
    return ranks * bins // max(1, len(values))


def learning_curves(sweep: Sweep, trials: Sequence[Trial]) -> Lines | None:
    """The validation value of each trial by epoch."""
    name, lines = objective(sweep.settings.recipe), {}
    for row, trial in enumerate(trials):
        measured = [line for line in trial.run.metrics if name in line]
        if measured:
            epochs = [line["epoch"] + 1 for line in measured]
            values = [line[name] for line in measured]
            color = row * COLORS // len(trials)
            lines[trial.folder.name] = Line(epochs, values, color, points=len(epochs) == 1)
    return Lines(lines, "epoch", name, whole=True) if lines else None
