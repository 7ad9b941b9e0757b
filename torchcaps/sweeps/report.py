"""Report of a sweep: a summary as JSON, and one HTML file with tables and figures."""

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from torchcaps.explorer.report import ReportFigure, as_scripts, figure_svg
from torchcaps.sweeps.figures import charts, importance
from torchcaps.sweeps.folder import Sweep, Trial, objective

TEXTS = {
    "parallel coordinates": "Each line is a trial, colored by its rank; the last axis is the "
    "validation value.",
    "importance": "Share of the variance of validation values that a field alone explains, in "
    "per cent.",
    "learning curves": "The validation value of each trial after each epoch.",
}


def state_counts(sweep: Sweep) -> str:
    """Trials by their state, in words."""
    counts = Counter(trial.state for trial in sweep.trials)
    counts["not started"] = sweep.settings.trials - sum(counts.values())
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count > 0)


def final_results(sweep: Sweep) -> dict[str, dict[str, Any]]:
    """Mean and deviation on the test split of the final runs, by metric and data."""
    values: dict[str, list[float]] = {}
    for run in sweep.final:
        for r in run.results:
            if r["split"] == "test":
                values.setdefault(f"{r['metric']} {r['data']}", []).append(r["value"])
    return {
        name: {"mean": mean(v), "std": stdev(v) if len(v) > 1 else None, "runs": len(v)}
        for name, v in values.items()
    }


def summary(sweep: Sweep) -> dict[str, Any]:
    """Everything about a sweep as plain values."""
    settings, best = sweep.settings, sweep.best
    return {
        "folder": str(sweep.folder),
        "objective": objective(settings.recipe),
        **{k: v for k, v in settings.to_json().items() if k not in ("version", "recipe")},
        "recipe": settings.recipe.name,
        "device_hours": round(sweep.seconds / 3600, 4),
        "best": _plain(best) if best else None,
        "final": final_results(sweep),
        "importance": importance(sweep),
        "trials_by_number": [_plain(trial) for trial in sweep.trials],
    }


def _plain(trial: Trial) -> dict[str, Any]:
    return {**asdict(trial), "folder": str(trial.folder)}


def write_report(sweep: Sweep, out: Path) -> Path:
    """Write one self-contained HTML file; its figures are drawn from values that it holds."""
    from importlib.resources import files

    from jinja2 import Environment
    from markupsafe import Markup

    figures = []
    for name, chart in charts(sweep).items():
        figure = ReportFigure(name, chart, chart.figure(), number=len(figures))
        figure.svg = Markup(figure_svg(figure.figure, name))
        figures.append(figure)
    about = [{"run": sweep.folder.name}]
    drawn = [
        {"title": f.name, "name": f.name.replace(" ", "-"), "about": about,
         "drawing": f.chart.data()}
        for f in figures if f.chart is not None
    ]  # fmt: skip
    page = Environment(autoescape=True).from_string(
        files("torchcaps.sweeps").joinpath("report.html").read_text(encoding="utf-8")
    )
    style = files("torchcaps.explorer").joinpath("report.html").read_text(encoding="utf-8")
    style = style.partition("<style>")[2].partition("</style>")[0]
    out.parent.mkdir(parents=True, exist_ok=True)
    text = page.render(
        title=f"Sweep {sweep.folder.name}", sweep=sweep, settings=sweep.settings,
        objective=objective(sweep.settings.recipe), counts=state_counts(sweep),
        trials=sweep.ranked, failed=[t for t in sweep.trials if t.error],
        final=final_results(sweep), space=json.dumps(sweep.settings.to_json()["space"]),
        style=Markup(style), figures=figures, texts=TEXTS, scripts=Markup(as_scripts(drawn)),
    )  # fmt: skip
    out.write_text(text, encoding="utf-8")
    return out
