"""Numbers of the runs in a report: table cells, references to compare with, and the headline."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from torchcaps.data import Dataset
from torchcaps.data.spec import parse
from torchcaps.metrics.reference import (
    SHARES,
    Reference,
    advice,
    reference,
    rival,
    with_intervals,
)
from torchcaps.models import Model
from torchcaps.training.recipe import changed_fields
from torchcaps.training.run import Run


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

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Results on the test split, or on validation before the run is finished."""
        tested = [r for r in self.results if r["split"] == "test"]
        return with_intervals(tested or self.results)

    @property
    def first(self) -> dict[str, Any] | None:
        """The result that a headline names: a share of the images, if there is one."""
        return min(self.lines, key=lambda r: not r["metric"].endswith(SHARES), default=None)


def in_words(spec: str) -> str:
    """A data set's name for people, without the folder that it lies in."""
    name, argument, options = parse(spec)
    if name == "folder":
        return Path(argument or "").name
    inside = f" of {in_words(argument)}" if argument else ""
    shown = ", ".join(f"{k} {v}" for k, v in options.items() if k not in ("copies", "size"))
    return f"{name}{inside}" + (f" ({shown})" if shown else "")


def _number(metric: str, value: float) -> str:
    return f"{100 * value:.2f} %" if metric.endswith(SHARES) else f"{value:.4f}"


def _with_interval(line: dict[str, Any]) -> str:
    text = _number(line["metric"], line["value"])
    if "interval_95" not in line:
        return text
    low, high = (100 * limit for limit in line["interval_95"])
    return f"{text} ({low:.1f} to {high:.1f})"


def fill_cells(shown: list[Shown]) -> list[str]:
    """Set the cells of each run. -> columns"""
    columns: list[str] = []
    for one in shown:
        for column, line in _columns(one):
            one.cells[column] = _with_interval(line)
            columns += [column] if column not in columns else []
    return columns


def _columns(one: Shown) -> Iterator[tuple[str, dict[str, Any]]]:
    """Column and result line of what a run measured."""
    for r in one.lines:
        split = "" if r["split"] == "test" else ", validation"
        yield f"{r['metric'].replace('_', ' ')}, {in_words(r['data'])}{split}", r


def seed_rows(shown: list[Shown]) -> list[dict[str, Any]]:
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
            for column, line in _columns(one):
                values.setdefault(column, []).append((line["metric"], line["value"]))
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


def references(shown: list[Shown]) -> dict[str, Reference]:
    """Reference accuracies on the test images of each data set, by the column of its accuracy."""
    by_column: dict[str, Reference] = {}
    # features of a pretrained backbone make stronger baselines than pixels
    for one in sorted(shown, key=lambda one: not one.model.frozen):
        own = one.run.recipe().data.name
        for column, line in _columns(one):
            known = column in by_column or line["metric"] != "accuracy" or line["data"] != own
            if known or line["split"] != "test":
                continue
            if known := reference(one.data, one.data.test, one.data.classes, one.model):
                by_column[column] = known
    return by_column


def reference_rows(by_column: dict[str, Reference]) -> list[dict[str, Any]]:
    """Rows of the table of results: a baseline each."""
    rows: dict[str, dict[str, str]] = {}
    for column, known in by_column.items():
        for one in known.baselines:
            low, high = (100 * limit for limit in one.interval_95)
            cell = f"{100 * one.accuracy:.2f} % ({low:.1f} to {high:.1f})"
            rows.setdefault(one.title, {})[column] = cell
    return [{"name": n, "parameters": "–", "cells": cells} for n, cells in rows.items()]


def headline(shown: list[Shown], found: dict[str, Reference]) -> str:
    """The first number of each run, who wins, and what it is compared with, as sentences."""
    sentences = [_sentence(one) for one in shown]
    for column, known in found.items():
        runs = [(one, line) for one in shown for c, line in _columns(one) if c == column]
        best, line = max(runs, key=lambda pair: pair[1]["value"])
        sentences.append(known.verdict(best.name, line["value"]))
        where = f" on {column.removeprefix('accuracy, ')}" if len(found) > 1 else ""
        share = f"{100 * known.majority_accuracy:.2f} %"
        sentences.append(f"Always predicting {known.majority_class} scores {share}{where}.")
    return " ".join([*sentences, *_comparisons(shown)])


def _sentence(one: Shown) -> str:
    r = one.first
    if r is None:
        return f"{one.name} has not validated yet."
    count = f"{r['n']:,} " if "n" in r else ""
    images = f"{count}{'test' if r['split'] == 'test' else 'validation'} images of "
    images += in_words(r["data"])
    value, interval = _number(r["metric"], r["value"]), ""
    if "interval_95" in r:
        interval = " (95 % interval {:.1f} to {:.1f} %)".format(
            *(100 * v for v in r["interval_95"])
        )
    texts = {
        "accuracy": f"{one.name} classifies {value} of {images} correctly{interval}.",
        "exact_match": f"{one.name} finds exactly the objects of {value} of {images}{interval}.",
    }
    what = r["metric"].replace("_", " ")
    return texts.get(r["metric"], f"{one.name} has a {what} of {value} on {images}{interval}.")


def _comparisons(shown: list[Shown]) -> list[str]:
    """Each run beside the strongest baseline on the same photographs, or the advice to train it."""
    sentences = []
    for one in shown:
        text, mine = advice(one.data, one.model.config.family), one.first
        if not text:
            continue
        family, kind = rival(one.data, one.model.config.family)
        same = [o for o in shown if o.model.config.family == family]
        beside = [(o, o.first) for o in same if _same_images(o.first, mine)]
        if not beside or mine is None:
            sentences += [text] if text not in sentences else []
            continue
        best, other = max(beside, key=lambda pair: pair[1]["value"] if pair[1] else 0.0)
        assert other is not None
        apart = 100 * (mine["value"] - other["value"])
        place = (
            f"{abs(apart):.1f} points {'above' if apart > 0 else 'below'}"
            if apart
            else "level with"
        )
        one_low, one_high = mine["interval_95"]
        low, high = other["interval_95"]
        overlap = "overlap" if one_low <= high and low <= one_high else "do not overlap"
        sentences.append(
            f"{one.name} is {place} {best.name}, {kind} here; their intervals {overlap}."
        )
    return sentences


def _same_images(one: dict[str, Any] | None, two: dict[str, Any] | None) -> bool:
    keys = ("data", "split", "metric", "n")
    return (
        one is not None and two is not None and "interval_95" in one
        and all(one.get(key) == two.get(key) for key in keys)
    )  # fmt: skip
