"""Charts as data, for matplotlib and for the page of the explorer.

A chart has `figure()`, a matplotlib figure, and `data()`, plain values for the page's draw.js:
lines, bars, a matrix, a grid of images, images with captions, or maps over an image.
"""

import base64
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from torchcaps.analysis.matplotlib_figures import (
    image_grid,
    literal,
    new_figure,
    show_grid,
    styled_plot,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DASHES = ("-", "--", "-.", ":")


class Chart:
    """Base class of charts."""

    kind: ClassVar[str] = ""

    def figure(self) -> "Figure":
        """The chart as a matplotlib figure."""
        raise NotImplementedError

    def data(self) -> dict[str, Any]:
        """Plain values for a page; `kind` names the chart."""
        raise NotImplementedError


def numbers(values: Any) -> list[Any]:
    """Arrays as nested lists of numbers with six digits; None where a value is not finite."""
    flat = np.asarray(values, dtype=np.float64)
    short = [float(f"{v:.6g}") if np.isfinite(v) else None for v in flat.ravel()]
    return np.array(short, dtype=object).reshape(flat.shape).tolist()


def packed(images: np.ndarray) -> dict[str, Any]:
    """Images [...,C,H,W] in [0,1] as base64 bytes, with their shape."""
    content = (np.nan_to_num(images).clip(0, 1) * 255).round().astype(np.uint8).tobytes()
    return {"shape": list(images.shape), "pixels": base64.b64encode(content).decode()}


@dataclass(frozen=True)
class Line:
    """One line. color, dash: numbers in the palettes; points: mark the data points."""

    x: Any
    y: Any
    color: int = 0
    dash: int = 0
    points: bool = False

    @property
    def style(self) -> dict[str, Any]:
        points = {"marker": "o"} if self.points else {}
        return {"color": f"C{self.color}", "linestyle": DASHES[self.dash], **points}


@dataclass(frozen=True)
class Lines(Chart):
    """Lines by name on common axes."""

    kind = "lines"
    lines: dict[str, Line]
    xlabel: str
    ylabel: str
    low: float | None = None
    high: float | None = None
    log: bool = False
    whole: bool = False
    """Put ticks of x at whole numbers only."""

    def figure(self) -> "Figure":
        styled = {name: (line.x, line.y, line.style) for name, line in self.lines.items()}
        axis: dict[str, Any] = {"yscale": "log" if self.log else "linear"}
        if self.high is not None:
            axis["ylim"] = (self.low, self.high)
        figure = styled_plot(styled, self.xlabel, self.ylabel, **axis)
        if self.whole:
            locator: Any = figure.axes[0].xaxis.get_major_locator()
            locator.set_params(integer=True, min_n_ticks=1)
        return figure

    def data(self) -> dict[str, Any]:
        lines = [
            {"name": name, "x": numbers(line.x), "y": numbers(line.y), "colour": line.color,
             "dash": line.dash, "points": line.points}
            for name, line in self.lines.items()
        ]  # fmt: skip
        limits = None if self.high is None else [self.low, self.high]
        return {"kind": self.kind, "lines": lines, "xlabel": self.xlabel, "ylabel": self.ylabel,
                "yrange": limits, "log": self.log, "whole": self.whole}  # fmt: skip


@dataclass(frozen=True)
class Bars(Chart):
    """Horizontal bars of percentages."""

    kind = "bars"
    names: list[str]
    values: Any
    xlabel: str

    def figure(self) -> "Figure":
        figure = new_figure(4.6, 0.24 * len(self.names) + 0.8)
        axes = figure.subplots()
        axes.barh(range(len(self.names)), self.values, height=0.7)
        for row, value in enumerate(self.values):
            inside = value > 15
            x, align = (value - 1, "right") if inside else (value + 1, "left")
            color: dict[str, Any] = {"color": "white"} if inside else {}
            axes.text(x, row, f"{value:.1f}", va="center", ha=align, fontsize=8, **color)
        axes.set_yticks(range(len(self.names)), list(map(literal, self.names)), fontsize=8)
        axes.set(xlim=(0, 100), ylim=(len(self.names) - 0.4, -0.6), xlabel=self.xlabel)
        return figure

    def data(self) -> dict[str, Any]:
        return {"kind": self.kind, "names": self.names, "values": numbers(self.values),
                "xlabel": self.xlabel}  # fmt: skip


@dataclass(frozen=True)
class Matrix(Chart):
    """A matrix as colors. written: print each value of at least 0.5 in its cell."""

    kind = "matrix"
    values: Any
    rows: list[str]
    columns: list[str]
    xlabel: str
    ylabel: str
    what: str
    most: float | None = None
    written: bool = False

    def figure(self) -> "Figure":
        columns, rows = len(self.columns), len(self.rows)
        size = (0.28 * columns + 1.4,) * 2 if self.written else (4.6, 0.24 * rows + 1.2)
        figure = new_figure(*size)
        axes = figure.subplots()
        colors = "Blues" if self.written else "viridis"
        aspect: Any = "equal" if self.written else "auto"
        image = axes.imshow(self.values, cmap=colors, vmin=0, vmax=self.most, aspect=aspect)
        if self.written:
            for r, c in zip(*np.nonzero(np.asarray(self.values) >= 0.5), strict=True):
                value = self.values[r][c]
                color = "white" if value > 50 else "black"
                axes.text(c, r, f"{value:.0f}", ha="center", va="center", fontsize=7, c=color)
        else:
            figure.colorbar(image, ax=axes).set_label(self.what, fontsize=8)
        step = 1 if self.written else max(1, columns // 8)
        angle = 90 if self.written else 0
        names = list(map(literal, self.columns[::step]))
        axes.set_xticks(range(0, columns, step), names, rotation=angle, fontsize=8)
        size = 8 if self.written else 7
        axes.set_yticks(range(rows), list(map(literal, self.rows)), fontsize=size)
        axes.set(xlabel=self.xlabel, ylabel=self.ylabel)
        return figure

    def data(self) -> dict[str, Any]:
        return {"kind": self.kind, "values": numbers(self.values), "rows": self.rows,
                "columns": self.columns, "xlabel": self.xlabel, "ylabel": self.ylabel,
                "what": self.what, "most": self.most, "written": self.written}  # fmt: skip


@dataclass(frozen=True)
class Grid(Chart):
    """Images [R,N,C,H,W] with row names and optional column names."""

    kind = "grid"
    images: np.ndarray
    rows: list[str]
    columns: list[str] = field(default_factory=list)
    inches: float = 0.55

    def figure(self) -> "Figure":
        return image_grid(self.images, self.rows, self.columns or None, self.inches)

    def data(self) -> dict[str, Any]:
        return {"kind": self.kind, "images": packed(self.images), "rows": self.rows,
                "columns": self.columns, "size": round(80 * self.inches)}  # fmt: skip


@dataclass(frozen=True)
class Shots(Chart):
    """Images [N,C,H,W] with captions, or the sentence `otherwise` if there are no images."""

    kind = "shots"
    images: np.ndarray
    captions: list[str]
    otherwise: str
    columns: int = 0
    """Images in a row; 0: at most four in a file, as many as fit in a page."""

    def figure(self) -> "Figure":
        count = len(self.images)
        if not count:
            figure = new_figure(3, 0.5)
            figure.text(0.5, 0.5, self.otherwise, ha="center", va="center")
            return figure
        columns = self.columns or min(4, count)
        rows = -(-count // columns)
        captions = ["\n".join(map(_wrapped, text.split("\n"))) for text in self.captions]
        lines = max(text.count("\n") + 1 for text in captions)
        figure = new_figure(1.3 * columns, (1.15 + 0.13 * lines) * rows)
        for index, axes in enumerate(figure.subplots(rows, columns, squeeze=False).flat):
            axes.set_axis_off()
            if index < count:
                show_grid(axes, self.images[None, index : index + 1], [], None)
                axes.set_title(literal(captions[index]), fontsize=6)
        return figure

    def data(self) -> dict[str, Any]:
        return {"kind": self.kind, "images": packed(self.images), "captions": self.captions,
                "otherwise": self.otherwise, "columns": self.columns}  # fmt: skip


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 24)) or text


@dataclass(frozen=True)
class Maps(Chart):
    """Named maps [N,H,W] over one image [C,H',W']."""

    kind = "maps"
    image: np.ndarray
    maps: np.ndarray
    names: list[str]
    what: str
    columns: int = 3

    def figure(self) -> "Figure":
        count, image = len(self.maps), self.image
        columns = min(self.columns, count)
        rows = -(-count // columns)
        figure = new_figure(1.7 * columns + 0.6, 1.9 * rows)
        grid = figure.subplots(rows, columns, squeeze=False)
        pixels = image.transpose(1, 2, 0)
        gray = pixels[..., 0] if pixels.shape[2] != 3 else pixels.mean(-1)
        overlay = None
        extent = (0, image.shape[2], image.shape[1], 0)
        for index, axes in enumerate(grid.flat):
            axes.set_axis_off()
            if index < count:
                axes.imshow(gray, cmap="gray", vmin=0, vmax=1, extent=extent)
                overlay = axes.imshow(
                    self.maps[index], cmap="inferno", vmin=0, vmax=self.maps.max() or 1, alpha=0.6,
                    extent=extent, interpolation="bilinear",
                )  # fmt: skip
                axes.set_title(literal(self.names[index]), fontsize=8)
        if overlay is not None:
            bar = figure.colorbar(overlay, ax=grid, shrink=0.7)
            bar.ax.tick_params(labelsize=7)
            bar.set_label(self.what, fontsize=8)
        return figure

    def data(self) -> dict[str, Any]:
        return {"kind": self.kind, "image": packed(self.image), "maps": numbers(self.maps),
                "names": self.names, "what": self.what}  # fmt: skip
