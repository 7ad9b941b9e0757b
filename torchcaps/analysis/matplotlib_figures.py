"""Helpers for matplotlib figures: new figures, line plots and image grids.

matplotlib takes most of a second to import, so only functions that draw import it.
"""

import warnings
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from torchcaps.errors import TorchcapsError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure; width and height in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def literal(name: object) -> str:
    """A name as matplotlib shows it, dollar signs and all, instead of a formula."""
    return str(name).replace("$", r"\$")


def save_figure(figure: "Figure", to: Path | IO[str], **options: Any) -> None:
    """Write a figure to a file; letters missing in matplotlib's font give boxes, not warnings."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        formats = figure.canvas.get_supported_filetypes()
        if isinstance(to, Path) and to.suffix.removeprefix(".").lower() not in formats:
            raise TorchcapsError(
                f"{to}: unknown figure format; use a name that ends in .png, .svg or .pdf."
            )
        figure.savefig(to, **options)


def styled_plot(
    curves: dict[str, tuple[Any, Any, dict[str, Any]]], xlabel: str, ylabel: str, **axis: Any
) -> "Figure":
    """Plot lines, (x, y, style) by name; with a legend for more than one."""
    figure = new_figure(4.6, 3.1)
    axes = figure.subplots()
    for name, (x, y, style) in curves.items():
        marker = {"marker": "o"} if len(x) == 1 else {}  # a single point has no line
        axes.plot(x, y, markersize=4, label=literal(name), **{**marker, **style})
    axes.set(xlabel=xlabel, ylabel=ylabel, **axis)
    axes.grid(alpha=0.3)
    if len(curves) > 1:
        axes.legend(frameon=False, fontsize=8)
    return figure


def tile(images: np.ndarray, gap: int = 1) -> np.ndarray:
    """Join images to one, with transparent gaps. [R,N,C,H,W] in [0,1] -> [H',W',4]"""
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
    """Figure of images [R,N,C,H,W] with row names and optional column names."""
    height, width = images.shape[0], images.shape[1]
    longest = max((len(name) for name in rows), default=0)
    figure = new_figure(inches * width + 0.1 * longest + 0.3, inches * height + 0.4)
    axes = figure.subplots()
    show_grid(axes, images, rows, columns)
    return figure


def show_grid(axes: Any, images: np.ndarray, rows: list[str], columns: list[str] | None) -> None:
    """Draw images [R,N,C,H,W] on axes without a frame."""
    axes.imshow(tile(images), interpolation="none")
    height, width = images.shape[3] + 1, images.shape[4] + 1
    axes.set_yticks(
        [height * (i + 0.5) for i in range(len(rows))], list(map(literal, rows)), fontsize=8
    )
    centers = [width * (i + 0.5) for i in range(len(columns or []))]
    axes.set_xticks(centers, list(map(literal, columns or [])), fontsize=7)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
