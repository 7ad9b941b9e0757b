"""The papers' tables, filled from results/*.jsonl and from nothing else."""

import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchcaps.data.spec import parse
from torchcaps.errors import UsageError, nearest
from torchcaps.papers.records import RESULTS, Line, read, results_file, run_of
from torchcaps.training.registry import (
    PAPERS,
    digest,
    get_recipe,
    has_protocol,
    import_recipes,
    recipes,
    revision,
)

NOT_HERE = {"affnist", "cifar100", "svhn"}
"""Data sets that no recorded run had; their cells say so."""


@dataclass(frozen=True)
class Column:
    """The recorded numbers of a column: a metric on the test split of these data sets."""

    data: tuple[str, ...]
    metric: str = "accuracy"
    scale: float = 100.0
    note: str = ""
    digits: int = 2
    """Digits after the decimal point."""
    lower: bool = False
    """Lower is better."""
    fit: str = ""
    """Data that a probe was fitted on, if a metric has several; empty: any."""

    features: tuple[str, ...] = ()
    """Representation that a probe read, if columns differ in it; empty: as the row says."""
    how: str = ""
    """Inference of latent variables, if columns differ in it; empty: any."""

    @property
    def not_run(self) -> bool:
        """True if no data of the column is available to the project."""
        return {parse(data)[0] for data in self.data} <= NOT_HERE

    tables: tuple[str, ...] = ()
    """Tables whose runs count, if runs of other tables had other data; empty: all."""

    def takes(self, line: Line, features: str = "") -> bool:
        return (
            line["metric"] == self.metric
            and line["data"] in self.data
            and (not self.tables or line["table"] in self.tables)
            and line.get("features", "") in (self.features or (features,))
            and self.fit in ("", line.get("fit", ""))
            and self.how in ("", line.get("how", ""))
        )


@dataclass(frozen=True)
class Table:
    paper: str
    name: str
    title: str
    columns: dict[str, Column]
    rows: dict[str, dict[str, float]]
    """Row -> column -> the paper's value, in the paper's order."""
    sources: tuple[str, ...] = ()
    """Other tables of the paper whose recorded runs count here too, in rows of the same name."""
    derived: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Rows filled by another row's runs, with probes on other features: (row, features)."""
    only: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Rows filled by runs of these tables alone, if another has a different row of that name."""
    differences: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Rows that are the first row minus the second, paired by seed."""
    unlike: tuple[str, ...] = ()
    """Rows and columns whose printed value measures something else than ours: tables show it, and
    do not compare."""

    def compares(self, cell: dict[str, Any]) -> bool:
        """True if the paper prints a value for this cell that measures the same."""
        row, column = cell["row"], cell["column"]
        printed = column in self.rows.get(row, {})
        return printed and row not in self.unlike and column not in self.unlike


_TABLES: dict[tuple[str, str], Table] = {}


def add_table(table: Table) -> Table:
    _TABLES[table.paper, table.name] = table
    return table


def list_tables(paper: str | None = None) -> list[Table]:
    import_recipes(*([paper] if paper else PAPERS))
    papers = sorted({key[0] for key in _TABLES} | set(PAPERS))
    if paper is not None and paper not in papers:
        raise UsageError(f"Unknown paper {paper!r}. {nearest(paper, papers)}")
    return [table for key, table in sorted(_TABLES.items()) if paper in (None, key[0])]


def get_table(paper: str, name: str) -> Table:
    names = [table.name for table in list_tables(paper)]
    if name not in names:
        raise UsageError(f"{paper} has no table {name!r}. {nearest(name, names)}")
    return _TABLES[paper, name]


def counted_lines(paper: str, folder: Path = RESULTS, older: bool = False) -> list[Line]:
    """The recorded lines that count: not superseded, finite, and of today's recipes.

    older: lines of earlier versions of the recipes, too
    """
    lines = [x for x in read(results_file(paper, folder))[0] if "superseded_by" not in x]
    lines = [x for x in lines if math.isfinite(x["value"])]  # tables skip NaN
    if older:
        return lines
    known = recipes(paper)
    today: dict[tuple[str, str], tuple[str, int]] = {}
    for line in lines:
        key = line["recipe"], line["protocol"]
        if key not in today and key[0] in known and has_protocol(*key):
            recipe = get_recipe(*key)
            today[key] = digest(recipe), revision(recipe)

    def counts(line: Line) -> bool:
        if line["protocol"] not in ("ours", "paper"):
            return True
        wanted = today.get((line["recipe"], line["protocol"]))
        return wanted is not None and (line.get("digest"), line.get("revision")) == wanted

    return [line for line in lines if counts(line)]


def todays_digests(paper: str, folder: Path = RESULTS) -> dict[str, tuple[str, int]]:
    """The digests of the recipes of lines without one, by `recipe [protocol]`."""
    lines = [x for x in read(results_file(paper, folder))[0] if "digest" not in x]
    known, digests = recipes(paper), {}
    for name, protocol in sorted({(x["recipe"], x["protocol"]) for x in lines}):
        if name in known and has_protocol(name, protocol):
            recipe = get_recipe(name, protocol)
            digests[f"{name} [{protocol}]"] = digest(recipe), revision(recipe)
    return digests


def cells(table: Table, folder: Path = RESULTS, older: bool = False) -> list[dict[str, Any]]:
    """A cell for every row and column, one for each protocol; n = 0 where nothing was run.

    mean, std and best are in the paper's unit, over seeds and over recipes that fill one row. Runs
    of one recipe and seed count as one, by their mean, and `repeated` names those seeds. Cells of
    differences have an `interval`, half the width of the 95 % interval of their mean.
    """
    sources = (table.name, *table.sources)
    lines = [r for r in counted_lines(table.paper, folder, older) if r["table"] in sources]
    rows = []
    for row, printed in table.rows.items():
        if row in table.differences:
            one, other = (_of_row(table, name, lines) for name in table.differences[row])
            for name, column in table.columns.items():
                cell = _difference(one[name], other[name], column)
                rows.append({"paper": table.paper, "table": table.name, "row": row, "column": name,
                             "protocol": "ours", **cell})  # fmt: skip
            continue
        columns = _of_row(table, row, lines)
        protocols = {r["protocol"] for chosen in columns.values() for r in chosen} or {"ours"}
        for name, column in table.columns.items():
            for protocol in sorted(protocols, key=lambda p: (p != "ours", p)):
                chosen = [r for r in columns[name] if r["protocol"] == protocol]
                runs = _by_seed(chosen, column)
                values = [statistics.fmean(v) for v in runs.values()]
                rows.append({
                    "paper": table.paper, "table": table.name, "row": row, "column": name,
                    "protocol": protocol,
                    "mean": statistics.fmean(values) if values else None,
                    "std": statistics.stdev(values) if len(values) > 1 else None,
                    "n": len(values),
                    "best": (min if column.lower else max)(sum(runs.values(), []), default=None),
                    "paper_value": printed.get(name),
                    "repeated": sorted({seed for (_, seed), v in runs.items() if len(v) > 1}),
                })  # fmt: skip
    return rows


def _of_row(table: Table, row: str, lines: list[Line]) -> dict[str, list[Line]]:
    """The lines that fill a row, by column."""
    name_of, features = table.derived.get(row, (row, ""))
    tables = table.only.get(row, (table.name, *table.sources))
    tested = [
        r for r in lines if r["row"] == name_of and r["split"] == "test" and r["table"] in tables
    ]
    return {n: [r for r in tested if c.takes(r, features)] for n, c in table.columns.items()}


def _difference(first: list[Line], second: list[Line], column: Column) -> dict[str, Any]:
    """One row minus another in a column, over the seeds that both have under our protocol."""
    from scipy.stats import t

    one, other = (
        {seed: statistics.fmean(v) for (_, seed), v in _by_seed(
            [r for r in lines if r["protocol"] == "ours"], column).items()}
        for lines in (first, second)
    )  # fmt: skip
    values = [one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())]
    n = len(values)
    std = statistics.stdev(values) if n > 1 else None
    return {
        "mean": statistics.fmean(values) if values else None,
        "std": std,
        "interval": None if std is None else float(t.ppf(0.975, n - 1)) * std / math.sqrt(n),
        "n": n, "best": None, "paper_value": None, "repeated": [],
    }  # fmt: skip


def _by_seed(lines: list[Line], column: Column) -> dict[tuple[str, int], list[float]]:
    """The values of each recipe and seed, one a run: that of the first of the column's data sets
    which the run was tested on.
    """
    of_runs: dict[tuple[Any, ...], Line] = {}
    for line in lines:
        known = of_runs.get(run_of(line))
        if known is None or column.data.index(line["data"]) <= column.data.index(known["data"]):
            of_runs[run_of(line)] = line
    values: dict[tuple[str, int], list[float]] = {}
    for line in of_runs.values():
        values.setdefault((line["recipe"], line["seed"]), []).append(column.scale * line["value"])
    return values


def cells_of_record(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The cells of the table row that a run fills: our results so far, and the paper's value."""
    recipe = record["recipe"]
    if not recipe.get("paper"):
        return []
    return [
        {name: cell[name] for name in ("column", "protocol", "mean", "std", "n", "paper_value")}
        for table in list_tables(recipe["paper"])
        if table.name == recipe["table"]
        for cell in cells(table, RESULTS)
        if cell["row"] == recipe["row"] and (cell["n"] or cell["paper_value"] is not None)
    ]
