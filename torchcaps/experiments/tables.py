"""The papers' tables, filled from results/*.jsonl and from nothing else."""

import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchcaps.errors import Misused, nearest
from torchcaps.train.registry import digest, get_recipe, has_protocol, recipes, revision
from torchcaps.train.results import Line, read, results_file, run_of


@dataclass(frozen=True)
class Column:
    """Which recorded numbers a column takes: those of these data sets' test split."""

    data: tuple[str, ...]
    metric: str = "accuracy"
    scale: float = 100.0
    note: str = ""
    digits: int = 2
    """Digits shown after the point."""
    lower: bool = False
    """Whether less is better."""
    fit: str = ""
    """What a probe learned from, where the same metric and data have several; empty: anything."""

    features: tuple[str, ...] = ()
    """What a probe saw, where columns differ in that; empty: what the row says."""
    how: str = ""
    """How latent numbers were found, where columns differ in that; empty: in any way."""
    tables: tuple[str, ...] = ()
    """Tables whose runs it takes, where they were trained on other data elsewhere; empty: all."""

    def takes(self, line: Line, features: str = "") -> bool:
        right = line["metric"] == self.metric and line["data"] in self.data
        right = right and (not self.tables or line["table"] in self.tables)
        seen = line.get("features", "") in (self.features or (features,))
        found = self.fit in ("", line.get("fit", "")) and self.how in ("", line.get("how", ""))
        return right and seen and found


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
    """Rows that another row's runs fill, with what probes made of other features: (row, features).
    """
    only: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Rows that take runs of these tables alone, where another has a row of that name with another
    setting."""


_TABLES: dict[tuple[str, str], Table] = {}


def add_table(table: Table) -> Table:
    _TABLES[table.paper, table.name] = table
    return table


def list_tables(paper: str | None = None) -> list[Table]:
    papers = sorted({key[0] for key in _TABLES})
    if paper is not None and paper not in papers:
        raise Misused(f"There is no paper {paper!r}. {nearest(paper, papers)}")
    return [table for key, table in sorted(_TABLES.items()) if paper in (None, key[0])]


def get_table(paper: str, name: str) -> Table:
    names = [table.name for table in list_tables(paper)]
    if name not in names:
        raise Misused(f"{paper} has no table {name!r}. {nearest(name, names)}")
    return _TABLES[paper, name]


RESULTS = Path("results")


def counted_lines(paper: str, folder: Path = RESULTS, older: bool = False) -> list[Line]:
    """The recorded lines that count: not superseded, and of recipes as they are registered today.

    older: those of recipes as they were, too. A changed recipe's lines count as what they are.
    """
    lines = [x for x in read(results_file(paper, folder))[0] if "superseded_by" not in x]
    lines = [x for x in lines if math.isfinite(x["value"])]  # a mean over nothing is none
    if older:
        return lines
    known = recipes()
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
    """For recorded lines that carry no digest: that of their recipe, by `recipe [protocol]`."""
    lines = [x for x in read(results_file(paper, folder))[0] if "digest" not in x]
    known, found = recipes(), {}
    for name, protocol in sorted({(x["recipe"], x["protocol"]) for x in lines}):
        if name in known and has_protocol(name, protocol):
            recipe = get_recipe(name, protocol)
            found[f"{name} [{protocol}]"] = digest(recipe), revision(recipe)
    return found


def cells(table: Table, folder: Path = RESULTS, older: bool = False) -> list[dict[str, Any]]:
    """A cell for every row and column, one for each protocol; n = 0 where nothing was run.

    mean, std and best are in the paper's unit, over seeds and over recipes that fill one row. Runs
    of one recipe and seed count as one, by their mean, and `repeated` names those seeds.
    """
    taken = (table.name, *table.sources)
    lines = [r for r in counted_lines(table.paper, folder, older) if r["table"] in taken]
    found = []
    for row, printed in table.rows.items():
        name_of, features = table.derived.get(row, (row, ""))
        tables = table.only.get(row, taken)
        tested = [
            r
            for r in lines
            if r["row"] == name_of and r["split"] == "test" and r["table"] in tables
        ]
        columns = {n: [r for r in tested if c.takes(r, features)] for n, c in table.columns.items()}
        protocols = {r["protocol"] for chosen in columns.values() for r in chosen} or {"ours"}
        for name, column in table.columns.items():
            for protocol in sorted(protocols, key=lambda p: (p != "ours", p)):
                chosen = [r for r in columns[name] if r["protocol"] == protocol]
                runs = _by_seed(chosen, column)
                values = [statistics.fmean(v) for v in runs.values()]
                found.append({
                    "paper": table.paper, "table": table.name, "row": row, "column": name,
                    "protocol": protocol,
                    "mean": statistics.fmean(values) if values else None,
                    "std": statistics.stdev(values) if len(values) > 1 else None,
                    "n": len(values),
                    "best": (min if column.lower else max)(sum(runs.values(), []), default=None),
                    "paper_value": printed.get(name),
                    "repeated": sorted({seed for (_, seed), v in runs.items() if len(v) > 1}),
                })  # fmt: skip
    return found


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
