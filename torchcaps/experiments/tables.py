"""The papers' tables, filled from results/*.jsonl and from nothing else."""

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchcaps.errors import TorchcapsError, nearest


@dataclass(frozen=True)
class Column:
    """Which recorded numbers a column takes: those of these data sets' test split."""

    data: tuple[str, ...]
    metric: str = "accuracy"
    scale: float = 100.0
    note: str = ""
    digits: int = 2
    """Shown after the point."""
    lower: bool = False
    """Whether less is better."""


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


_TABLES: dict[tuple[str, str], Table] = {}


def add_table(table: Table) -> Table:
    _TABLES[table.paper, table.name] = table
    return table


def tables(paper: str | None = None) -> list[Table]:
    papers = sorted({key[0] for key in _TABLES})
    if paper is not None and paper not in papers:
        raise TorchcapsError(f"There is no paper {paper!r}. {nearest(paper, papers)}")
    return [table for key, table in sorted(_TABLES.items()) if paper in (None, key[0])]


def get_table(paper: str, name: str) -> Table:
    names = [table.name for table in tables(paper)]
    if name not in names:
        raise TorchcapsError(f"{paper} has no table {name!r}. {nearest(name, names)}")
    return _TABLES[paper, name]


def read_results(paper: str, folder: Path = Path("results")) -> list[dict[str, Any]]:
    """The recorded lines of a paper, those that were superseded left out."""
    path = folder / f"{paper}.jsonl"
    if not path.exists():
        return []
    lines = []
    for number, text in enumerate(path.read_text().splitlines(), 1):
        try:
            line = json.loads(text)
        except ValueError:
            raise TorchcapsError(
                f"{path}:{number}: not JSON. Results are written by the program."
            ) from None
        if not line.get("superseded_by"):
            lines.append(line)
    return lines


def cells(table: Table, folder: Path = Path("results")) -> list[dict[str, Any]]:
    """A cell for every row and column, one for each protocol; n = 0 where nothing was run.

    mean, std and best are over runs, in the paper's unit: seeds, and recipes that fill one row.
    """
    counted = (table.name, *table.sources)
    lines = [r for r in read_results(table.paper, folder) if r["table"] in counted]
    found = []
    for row, printed in table.rows.items():
        tested = [r for r in lines if r["row"] == row and r["split"] == "test"]
        columns = {
            name: [r for r in tested if r["metric"] == c.metric and r["data"] in c.data]
            for name, c in table.columns.items()
        }
        protocols = {r["protocol"] for chosen in columns.values() for r in chosen} or {"ours"}
        for name, column in table.columns.items():
            chosen = columns[name]
            for protocol in sorted(protocols):
                by_run = {
                    (r["recipe"], r["seed"]): column.scale * r["value"]
                    for r in chosen
                    if r["protocol"] == protocol
                }
                values = list(by_run.values())
                found.append({
                    "paper": table.paper, "table": table.name, "row": row, "column": name,
                    "protocol": protocol,
                    "mean": statistics.fmean(values) if values else None,
                    "std": statistics.stdev(values) if len(values) > 1 else None,
                    "n": len(values),
                    "best": (min if column.lower else max)(values, default=None),
                    "paper_value": printed.get(name),
                })  # fmt: skip
    return found
