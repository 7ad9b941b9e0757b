"""Drawings as data: what a picture shows, once, for matplotlib and for a page.

A drawing has `figure()`, which matplotlib draws, and `data()`, plain values that the page's
draw.js draws from: lines, bars, a matrix, a grid of images, images with captions, maps over one.
"""

import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from torchcaps.analysis.figure import image_grid, new_figure, show_grid, styled_plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DASHES = ("-", "--", "-.", ":")


class Drawing:
    kind: ClassVar[str] = ""

    def figure(self) -> "Figure":
        raise NotImplementedError

    def data(self) -> dict[str, Any]:
        """Plain values for a page, under the name of their kind."""
        raise NotImplementedError


def numbers(values: Any) -> list[Any]:
    """Arrays as lists, with six digits; what is not finite is nothing."""
    flat = np.asarray(values, dtype=np.float64)
    short = [float(f"{v:.6g}") if np.isfinite(v) else None for v in flat.ravel()]
    return np.array(short, dtype=object).reshape(flat.shape).tolist()


def packed(images: np.ndarray) -> dict[str, Any]:
    """Images in [0,1] as bytes. [...,C,H,W]"""
    content = (np.nan_to_num(images).clip(0, 1) * 255).round().astype(np.uint8).tobytes()
    return {"shape": list(images.shape), "pixels": base64.b64encode(content).decode()}


@dataclass(frozen=True)
class Line:
    """One line: where it goes, its colour and its dashes by number, and whether it has points."""

    x: Any
    y: Any
    colour: int = 0
    dash: int = 0
    points: bool = False

    @property
    def style(self) -> dict[str, Any]:
        points = {"marker": "o"} if self.points else {}
        return {"color": f"C{self.colour}", "linestyle": DASHES[self.dash], **points}


@dataclass(frozen=True)
class Lines(Drawing):
    kind = "lines"
    lines: dict[str, Line]
    xlabel: str
    ylabel: str
    low: float | None = None
    high: float | None = None
    log: bool = False
    whole: bool = False
    """Whether x has whole numbers alone."""

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
            {"name": name, "x": numbers(line.x), "y": numbers(line.y), "colour": line.colour,
             "dash": line.dash, "points": line.points}
            for name, line in self.lines.items()
        ]  # fmt: skip
        limits = None if self.high is None else [self.low, self.high]
        return {"kind": self.kind, "lines": lines, "xlabel": self.xlabel, "ylabel": self.ylabel,
                "yrange": limits, "log": self.log, "whole": self.whole}  # fmt: skip


@dataclass(frozen=True)
class Bars(Drawing):
    """Shares in per cent, one below the other."""

    kind = "bars"
    names: list[str]
    values: Any
    xlabel: str

    def figure(self) -> "Figure":
        figure = new_figure(4.6, 0.24 * len(self.names) + 0.8)
        axes = figure.subplots()
        axes.barh(range(len(self.names)), self.values, height=0.7)
        for place, value in enumerate(self.values):
            inside = value > 15
            x, align = (value - 1, "right") if inside else (value + 1, "left")
            colour: dict[str, Any] = {"color": "white"} if inside else {}
            axes.text(x, place, f"{value:.1f}", va="center", ha=align, fontsize=8, **colour)
        axes.set_yticks(range(len(self.names)), self.names, fontsize=8)
        axes.set(xlim=(0, 100), ylim=(len(self.names) - 0.4, -0.6), xlabel=self.xlabel)
        return figure

    def data(self) -> dict[str, Any]:
        return {"kind": self.kind, "names": self.names, "values": numbers(self.values),
                "xlabel": self.xlabel}  # fmt: skip


@dataclass(frozen=True)
class Matrix(Drawing):
    """A table of shares as colours; written: each value of half of a unit and more as a number."""

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
        wide, high = len(self.columns), len(self.rows)
        size = (0.28 * wide + 1.4,) * 2 if self.written else (4.6, 0.24 * high + 1.2)
        figure = new_figure(*size)
        axes = figure.subplots()
        colours = "Blues" if self.written else "viridis"
        aspect: Any = "equal" if self.written else "auto"
        shown = axes.imshow(self.values, cmap=colours, vmin=0, vmax=self.most, aspect=aspect)
        if self.written:
            for r, c in zip(*np.nonzero(np.asarray(self.values) >= 0.5), strict=True):
                value = self.values[r][c]
                tone = "white" if value > 50 else "black"
                axes.text(c, r, f"{value:.0f}", ha="center", va="center", fontsize=7, c=tone)
        else:
            figure.colorbar(shown, ax=axes).set_label(self.what, fontsize=8)
        step = 1 if self.written else max(1, wide // 8)
        turn = 90 if self.written else 0
        axes.set_xticks(range(0, wide, step), self.columns[::step], rotation=turn, fontsize=8)
        axes.set_yticks(range(high), self.rows, fontsize=8 if self.written else 7)
        axes.set(xlabel=self.xlabel, ylabel=self.ylabel)
        return figure

    def data(self) -> dict[str, Any]:
        return {"kind": self.kind, "values": numbers(self.values), "rows": self.rows,
                "columns": self.columns, "xlabel": self.xlabel, "ylabel": self.ylabel,
                "what": self.what, "most": self.most, "written": self.written}  # fmt: skip


@dataclass(frozen=True)
class Grid(Drawing):
    """Images [R,N,C,H,W] with a name beside each row, and above each column where they have one."""

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
class Shots(Drawing):
    """Images [N,C,H,W] with a caption each, or one sentence where there are none."""

    kind = "shots"
    images: np.ndarray
    captions: list[str]
    otherwise: str

    def figure(self) -> "Figure":
        count = len(self.images)
        if not count:
            figure = new_figure(3, 0.5)
            figure.text(0.5, 0.5, self.otherwise, ha="center", va="center")
            return figure
        columns = min(4, count)
        rows = -(-count // columns)
        figure = new_figure(1.15 * columns, 1.6 * rows)
        for place, axes in enumerate(figure.subplots(rows, columns, squeeze=False).flat):
            axes.set_axis_off()
            if place < count:
                show_grid(axes, self.images[None, place : place + 1], [], None)
                axes.set_title(self.captions[place], fontsize=7)
        return figure

    def data(self) -> dict[str, Any]:
        return {"kind": self.kind, "images": packed(self.images), "captions": self.captions,
                "otherwise": self.otherwise}  # fmt: skip


@dataclass(frozen=True)
class Maps(Drawing):
    """Maps [N,H,W] over one image [C,H',W'], each with a name."""

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
        grey = pixels[..., 0] if pixels.shape[2] != 3 else pixels.mean(-1)
        shown = None
        extent = (0, image.shape[2], image.shape[1], 0)
        for place, axes in enumerate(grid.flat):
            axes.set_axis_off()
            if place < count:
                axes.imshow(grey, cmap="gray", vmin=0, vmax=1, extent=extent)
                shown = axes.imshow(
                    self.maps[place], cmap="inferno", vmin=0, vmax=self.maps.max() or 1, alpha=0.6,
                    extent=extent, interpolation="bilinear",
                )  # fmt: skip
                axes.set_title(self.names[place], fontsize=8)
        if shown is not None:
            bar = figure.colorbar(shown, ax=grid, shrink=0.7)
            bar.ax.tick_params(labelsize=7)
            bar.set_label(self.what, fontsize=8)
        return figure

    def data(self) -> dict[str, Any]:
        return {"kind": self.kind, "image": packed(self.image), "maps": numbers(self.maps),
                "names": self.names, "what": self.what}  # fmt: skip
