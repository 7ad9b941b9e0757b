"""One self-contained HTML file about one run or several: a loop over plots.

Its figures are drawn by the explorer's own drawing code from values that the file holds, and by
matplotlib where there are no scripts; the run's folder keeps them as PNG.
"""

import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from torchcaps.analysis.charts import Chart
from torchcaps.analysis.curves import training_curves
from torchcaps.analysis.matplotlib_figures import save_figure
from torchcaps.analysis.plots import Plot, report_plots
from torchcaps.data import Dataset
from torchcaps.data.registry import shared_loads
from torchcaps.data.spec import parse
from torchcaps.errors import TorchcapsError
from torchcaps.explorer.files import import_map, static_files
from torchcaps.models import Model
from torchcaps.models.hub import CHOSEN
from torchcaps.training.evaluate import run_data
from torchcaps.training.load import load
from torchcaps.training.recipe import changed_fields
from torchcaps.training.run import Run, by_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARES = ("accuracy", "exact_match")
"""Ends of the names of metrics that are shown in per cent."""


@dataclass
class Shown:
    """A run as the page has it."""

    name: str
    run: Run
    model: Model
    data: Dataset
    results: list[dict[str, Any]]
    cells: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def parameters(self) -> str:
        return f"{self.model.num_parameters:,}"


@dataclass
class ReportFigure:
    """A figure of a section: as the page draws it, and as matplotlib does."""

    name: str
    chart: Chart | None
    """None for a user's plot that matplotlib alone draws."""
    figure: "Figure"
    svg: str = ""
    number: int | None = None
    """Its index among the charts in the page."""


@dataclass
class Section:
    """A heading, a description, and figures that are also saved as files."""

    name: str
    title: str
    description: str
    figures: list[ReportFigure]
    missing: dict[str, str] = field(default_factory=dict)


def in_words(spec: str) -> str:
    """A data set's name for people, without the folder that it lies in."""
    name, argument, options = parse(spec)
    if name == "folder":
        return Path(argument or "").name
    inside = f" of {in_words(argument)}" if argument else ""
    shown = ", ".join(f"{k} {v}" for k, v in options.items() if k not in ("copies", "size"))
    return f"{name}{inside}" + (f" ({shown})" if shown else "")


def without_folders(text: str) -> str:
    """A command without the folders of somebody's machine: of every absolute path its last part."""
    return re.sub(r"(?<![\w.~-])(~|/[\w.-]+)(/[\w.-]+)*/([\w.-]+)", r"…/\3", text)


def _svg(figure: "Figure", salt: str) -> str:
    """Drawn in the colours of the page: text and lines take the colour of its text."""
    import matplotlib

    buffer = io.StringIO()
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": salt}
    nobody = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context(settings):
        save_figure(figure, buffer, format="svg", transparent=True, metadata=nobody)
    text = buffer.getvalue()
    text = re.sub(r'<g id="[^"]*"', "<g", text[text.index("<svg") :])  # the same in every figure
    return re.sub(r"(stroke|fill): #000000", r"\1: currentColor", text)


def _open(name: str, run: Run) -> Shown:
    """A finished run, or one in progress with its best weights so far."""
    recipe, data = run.recipe(), run_data(run)
    if run.finished:
        return Shown(name, run, load(run.folder), data, run.record()["results"])
    try:
        model = load(run.folder, "chosen")
    except TorchcapsError:
        model = load(run.folder, "last")
    last = {key: value for line in run.metrics for key, value in line.items()}
    split, numbers = recipe.stop_on, []
    for key, value in last.items():
        if key.startswith(f"{split}_"):
            metric = key.removeprefix(f"{split}_")
            numbers.append(
                {"data": recipe.data.name, "split": split, "metric": metric, "value": value}
            )
    return Shown(name, run, model, data, numbers)


def _number(metric: str, value: float) -> str:
    return f"{100 * value:.2f} %" if metric.endswith(SHARES) else f"{value:.4f}"


def _fill_cells(shown: list[Shown]) -> list[str]:
    """Numbers of the test split, or of validation before the run is finished."""
    columns: list[str] = []
    for one in shown:
        for column, metric, value in _numbers(one):
            one.cells[column] = _number(metric, value)
            columns += [column] if column not in columns else []
    return columns


def _numbers(one: Shown) -> Iterator[tuple[str, str, float]]:
    """Column, metric and value of what a run measured."""
    for r in [r for r in one.results if r["split"] == "test"] or one.results:
        split = "" if r["split"] == "test" else ", validation"
        column = f"{r['metric'].replace('_', ' ')}, {in_words(r['data'])}{split}"
        yield column, r["metric"], r["value"]


def _seeds(shown: list[Shown]) -> list[dict[str, Any]]:
    """Runs that differ in their seed alone as one row: mean ± deviation, and how many."""
    alike: dict[str, list[Shown]] = {}
    for one in shown:
        recipe = one.run.recipe()
        alike.setdefault(
            json.dumps([recipe.name, changed_fields(recipe)], sort_keys=True), []
        ).append(one)
    rows = []
    for group in alike.values():
        seeds = {one.run.recipe().seed for one in group}
        if len(seeds) < 2 or len(seeds) < len(group):
            continue
        values: dict[str, list[tuple[str, float]]] = {}
        for one in group:
            for column, metric, value in _numbers(one):
                values.setdefault(column, []).append((metric, value))
        cells = {column: _mean_and_deviation(pairs) for column, pairs in values.items()}
        recipe = group[0].run.recipe()
        rows.append({"name": f"{recipe.row or recipe.name}, {len(group)} seeds", "cells": cells,
                     "parameters": group[0].parameters})  # fmt: skip
    return rows


def _mean_and_deviation(pairs: list[tuple[str, float]]) -> str:
    metric, values = pairs[0][0], [value for _, value in pairs]
    if len(values) < 2:
        return _number(metric, values[0])
    scale, digits = (100, 2) if metric.endswith(SHARES) else (1, 4)
    average, deviation = scale * mean(values), scale * stdev(values)
    return f"{average:.{digits}f} ± {deviation:.{digits}f}" + (" %" if scale == 100 else "")


def _facts(one: Shown) -> dict[str, Any]:
    recipe = one.run.recipe()
    record = one.run.record() if one.run.finished else one.run.start()
    facts: dict[str, Any] = {"status": one.run.status} if "results" not in record else {}
    facts |= {"command": without_folders(record.get("command", ""))}
    facts |= {name: record.get(name, "") for name in ("commit", "date", "device")}
    facts["versions"] = ", ".join(f"{k} {v}" for k, v in record.get("versions", {}).items())
    facts["seed"] = recipe.seed
    if "results" in record:
        facts["epochs"] = record["epochs_trained"]
        facts[f"epoch chosen on {CHOSEN[recipe.stop_on]} data"] = record["chosen_epoch"] + 1
        facts["training time"] = f"{record['seconds']:.0f} s"
    note = one.data.note
    facts["data"] = in_words(recipe.data.name) + (f": {note}" if note else "")
    if record.get("modified"):
        facts["changed fields"] = without_folders(", ".join(record["modified"]))
    return facts


def _headline(shown: list[Shown]) -> str:
    """The first number of each run, as sentences."""
    sentences = []
    for one in shown:
        tested = [r for r in one.results if r["split"] == "test"] or one.results
        kind = sorted(tested, key=lambda r: not r["metric"].endswith(SHARES))
        if not kind:
            sentences.append(f"{one.name} has not validated yet.")
            continue
        r = kind[0]
        count = f"{r['n']:,} " if "n" in r else ""
        images = f"{count}{'test' if r['split'] == 'test' else 'validation'} images of "
        images += in_words(r["data"])
        value = _number(r["metric"], r["value"])
        texts = {
            "accuracy": f"{one.name} classifies {value} of {images} correctly.",
            "exact_match": f"{one.name} finds exactly the objects of {value} of {images}.",
        }
        what = r["metric"].replace("_", " ")
        sentences.append(texts.get(r["metric"], f"{one.name} has a {what} of {value} on {images}."))
    return " ".join(sentences)


def _differences(shown: list[Shown]) -> dict[str, list[Any]]:
    """Fields of the recipes that differ between runs."""
    fields = [{"seed": one.run.recipe().seed, **changed_fields(one.run.recipe())} for one in shown]
    names = sorted({name for values in fields for name in values})
    table = {name: [values.get(name, "") for values in fields] for name in names}
    differ = {n: v for n, v in table.items() if any(x != v[0] for x in v)}
    return {n: [without_folders(str(x)) or "default" for x in v] for n, v in differ.items()}


def _report_figure(name: str, plot: Plot, arrays: dict[str, Any]) -> ReportFigure:
    if type(plot).chart is Plot.chart:
        return ReportFigure(name, None, plot.figure(arrays))
    chart = plot.chart(arrays)
    return ReportFigure(name, chart, chart.figure())


def _sections(shown: list[Shown]) -> list[Section]:
    curves = training_curves({one.name: one.run.metrics for one in shown})
    sections = []
    if curves:
        text = "Losses, their terms and accuracy after each epoch."
        figures = [ReportFigure(kind, chart, chart.figure()) for kind, chart in curves.items()]
        sections.append(Section("training", "Training", text, figures))
    for plot in report_plots():
        reasons = {one.name: plot.lacks(one.model, one.data) for one in shown}
        arrays = {
            one.name: plot.compute(one.model, one.data) for one in shown if not reasons[one.name]
        }
        if not arrays:
            continue
        parts = {plot.name: arrays} if plot.combines else {n: {n: a} for n, a in arrays.items()}
        figures = [_report_figure(name, plot, part) for name, part in parts.items()]
        missing = {name: reason for name, reason in reasons.items() if reason}
        sections.append(Section(plot.name, plot.title, plot.description, figures, missing))
    return sections


def _as_script(value: Any) -> str:
    """JSON that no browser takes for the end of a script."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _scripts(sections: list[Section], shown: list[Shown]) -> str:
    """What the page draws, and the code that does: the explorer's modules as they are."""
    charts = []
    about = [{"run": one.name, "commit": one.facts["commit"]} for one in shown]
    for section in sections:
        for figure in section.figures:
            if figure.chart is not None:
                figure.number = len(charts)
                charts.append({
                    "title": section.title, "name": f"{section.name}-{figure.name}", "about": about,
                    "drawing": figure.chart.data(),
                })  # fmt: skip
    pages = static_files()
    modules = import_map({n: pages[n][0].decode() for n in ("draw.js", "save.js", "report.js")})
    return (
        f'<script type="importmap">{_as_script({"imports": modules})}</script>\n'
        f'<script type="application/json" id="drawings">{_as_script(charts)}</script>\n'
        '<script type="module">import "torchcaps/report.js";</script>'
    )


def write_report(reported: Sequence[Run | str | Path], out: Path | None = None) -> Path:
    """Write figures into each run's folder as PNG, and one self-contained HTML file."""
    from jinja2 import Environment
    from markupsafe import Markup

    runs = by_name(reported)
    with shared_loads():
        shown = [_open(name, run) for name, run in runs.items()]
    sections = _sections(shown)
    for section in sections:
        for figure in section.figures:
            owner = runs.get(figure.name, shown[0].run)
            owner.figures.mkdir(exist_ok=True)
            alone = figure.name in runs or figure.name == section.name
            stem = section.name if alone else f"{section.name}-{figure.name}"
            save_figure(figure.figure, owner.figures / f"{stem}.png", dpi=140)
            figure.svg = Markup(_svg(figure.figure, f"{section.name}/{figure.name}"))
    for one in shown:
        one.facts = _facts(one)
    scripts = Markup(_scripts(sections, shown))
    template = files("torchcaps.explorer").joinpath("report.html").read_text(encoding="utf-8")
    page = (
        Environment(autoescape=True)
        .from_string(template)
        .render(
            title=" · ".join(runs),
            headline=_headline(shown),
            sections=sections,
            scripts=scripts,
            columns=_fill_cells(shown),
            runs=shown,
            seeds=_seeds(shown),
            differences=_differences(shown) if len(shown) > 1 else {},
        )
    )
    path = out or shown[0].run.folder / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path
