"""What figures share: their making, and images put side by side.

matplotlib takes most of a second to import, so nothing that only computes imports it.
"""

import warnings
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from torchcaps.errors import TorchcapsError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of so many inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: "Figure", to: Path | IO[str], **options: Any) -> None:
    """Write a figure; letters that matplotlib's font lacks are boxes there, and no warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        known = figure.canvas.get_supported_filetypes()
        if isinstance(to, Path) and to.suffix.removeprefix(".").lower() not in known:
            raise TorchcapsError(f"{to}: a figure's name ends in .png, .svg or .pdf.")
        figure.savefig(to, **options)


def line_plot(
    curves: dict[str, tuple[Any, Any]], xlabel: str, ylabel: str, **axis: Any
) -> "Figure":
    """A line with points for each name, (x, y), and a legend where there are several."""
    styled = {name: (x, y, {"marker": "o"}) for name, (x, y) in curves.items()}
    return styled_plot(styled, xlabel, ylabel, **axis)


def styled_plot(
    curves: dict[str, tuple[Any, Any, dict[str, Any]]], xlabel: str, ylabel: str, **axis: Any
) -> "Figure":
    """The same, each line in a style of its own."""
    figure = new_figure(4.6, 3.1)
    axes = figure.subplots()
    for name, (x, y, style) in curves.items():
        lone = {"marker": "o"} if len(x) == 1 else {}  # one point draws no line
        axes.plot(x, y, markersize=4, label=name, **{**lone, **style})
    axes.set(xlabel=xlabel, ylabel=ylabel, **axis)
    axes.grid(alpha=0.3)
    if len(curves) > 1:
        axes.legend(frameon=False, fontsize=8)
    return figure


def tile(images: np.ndarray, gap: int = 1) -> np.ndarray:
    """A grid of images as one, clear between them. [R,N,C,H,W] in [0,1] -> [H',W',4]"""
    rows, columns, channels, height, width = images.shape
    canvas = np.zeros((rows * (height + gap) - gap, columns * (width + gap) - gap, 4))
    for r in range(rows):
        for c in range(columns):
            pixels = images[r, c].transpose(1, 2, 0)
            if channels != 3:
                pixels = np.repeat(pixels[:, :, :1], 3, 2)
            top, left = r * (height + gap), c * (width + gap)
            canvas[top : top + height, left : left + width, :3] = pixels
            canvas[top : top + height, left : left + width, 3] = 1
    return canvas.clip(0, 1)


def image_grid(
    images: np.ndarray, rows: list[str], columns: list[str] | None = None, inches: float = 0.55
) -> "Figure":
    """Images [R,N,C,H,W] with a name beside each row, and above each column where they have one."""
    high, wide = images.shape[0], images.shape[1]
    longest = max((len(name) for name in rows), default=0)
    figure = new_figure(inches * wide + 0.1 * longest + 0.3, inches * high + 0.4)
    axes = figure.subplots()
    show_grid(axes, images, rows, columns)
    return figure


def show_grid(axes: Any, images: np.ndarray, rows: list[str], columns: list[str] | None) -> None:
    """Images [R,N,C,H,W] on axes without a frame."""
    axes.imshow(tile(images), interpolation="none")
    height, width = images.shape[3] + 1, images.shape[4] + 1
    axes.set_yticks([height * (i + 0.5) for i in range(len(rows))], rows, fontsize=8)
    places = [width * (i + 0.5) for i in range(len(columns or []))]
    axes.set_xticks(places, columns or [], fontsize=7)
    bare(axes)


def bare(axes: Any) -> None:
    """No ticks and no frame."""
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
