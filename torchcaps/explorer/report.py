"""One self-contained HTML file about one run or several: a loop over plots.

Its figures are drawn by the explorer's own drawing code from values that the file holds, and by
matplotlib where there are no scripts; the run's folder keeps them as PNG.
"""

import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcaps.analysis.charts import Chart
from torchcaps.analysis.curves import training_curves
from torchcaps.analysis.matplotlib_figures import save_figure
from torchcaps.analysis.plots import Plot, report_plots
from torchcaps.data.registry import shared_loads
from torchcaps.errors import TorchcapsError
from torchcaps.explorer.files import import_map, static_files
from torchcaps.explorer.results import (
    Shown,
    fill_cells,
    headline,
    in_words,
    reference_rows,
    references,
    seed_rows,
)
from torchcaps.models.hub import CHOSEN
from torchcaps.training.evaluate import run_data
from torchcaps.training.load import load
from torchcaps.training.recipe import changed_fields
from torchcaps.training.run import Run, by_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


def without_folders(text: str) -> str:
    """A command without the folders of somebody's machine: of every absolute path its last part."""
    return re.sub(r"(?<![\w.~-])(~|/[\w.-]+)(/[\w.-]+)*/([\w.-]+)", r"…/\3", text)


def figure_svg(figure: "Figure", salt: str) -> str:
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


def _differences(shown: list[Shown]) -> dict[str, list[Any]]:
    """Fields of the recipes that differ between runs."""
    fields = [{"seed": one.run.recipe().seed, **changed_fields(one.run.recipe())} for one in shown]
    names = sorted({name for values in fields for name in values})
    table = {name: [values.get(name, "") for values in fields] for name in names}
    differ = {n: v for n, v in table.items() if any(x != v[0] for x in v)}
    return {n: [without_folders(str(x)) or "default" for x in v] for n, v in differ.items()}


def _report_figure(name: str, plot: Plot, arrays: dict[str, Any]) -> ReportFigure:
    if type(plot).chart is Plot.chart and type(plot).chart_of is Plot.chart_of:
        return ReportFigure(name, None, plot.figure(arrays))
    chart = plot.chart(arrays)
    return ReportFigure(name, chart, chart.figure())


def _sections(shown: list[Shown]) -> list[Section]:
    curves = training_curves({one.name: one.run.metrics for one in shown})
    sections = []
    if curves:
        text = (
            "Losses, their terms and accuracy after each epoch. A training loss is the mean over "
            "the epoch on augmented images; the validation loss is that of the weights at its end, "
            "so it can be lower."
        )
        figures = [ReportFigure(kind, chart, chart.figure()) for kind, chart in curves.items()]
        sections.append(Section("training", "Training", text, figures))
    for plot in report_plots():
        reasons = {one.name: plot.lacks(one.model, one.data) for one in shown}
        blank = {
            one.name: plot.blank(one.model, one.data) for one in shown if not reasons[one.name]
        }
        reasons |= blank
        arrays = {
            one.name: plot.compute(one.model, one.data) for one in shown if not reasons[one.name]
        }
        if not blank:
            continue
        together = plot.combines and bool(arrays)
        parts = {plot.name: arrays} if together else {n: {n: a} for n, a in arrays.items()}
        figures = [_report_figure(name, plot, part) for name, part in parts.items()]
        missing = {name: reason for name, reason in reasons.items() if reason}
        sections.append(Section(plot.name, plot.title, plot.description, figures, missing))
    return sections


def _as_script(value: Any) -> str:
    """JSON that no browser takes for the end of a script."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _scripts(sections: list[Section], shown: list[Shown]) -> str:
    """Data and code of the page: the explorer's modules as they are."""
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
    return as_scripts(charts)


def as_scripts(charts: list[dict[str, Any]]) -> str:
    """Charts as data, and the code of the explorer that draws them: for the end of a page."""
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
            figure.svg = Markup(figure_svg(figure.figure, f"{section.name}/{figure.name}"))
    for one in shown:
        one.facts = _facts(one)
    scripts = Markup(_scripts(sections, shown))
    reference_of = references(shown)
    template = files("torchcaps.explorer").joinpath("report.html").read_text(encoding="utf-8")
    page = (
        Environment(autoescape=True)
        .from_string(template)
        .render(
            title=" · ".join(runs),
            headline=headline(shown, reference_of),
            sections=sections,
            scripts=scripts,
            columns=fill_cells(shown),
            runs=shown,
            more=seed_rows(shown) + reference_rows(reference_of),
            differences=_differences(shown) if len(shown) > 1 else {},
        )
    )
    path = out or shown[0].run.folder / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path
