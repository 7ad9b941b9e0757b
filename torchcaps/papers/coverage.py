"""Coverage of the papers' tables: cells with runs, and cells that match the paper.

A cell is a row and a column, under our own protocol.
"""

from dataclasses import dataclass
from pathlib import Path

from torchcaps.papers.records import RESULTS
from torchcaps.papers.reproduce import tested_on
from torchcaps.papers.tables import Table, cells, list_tables
from torchcaps.training.registry import get_recipe, recipes


@dataclass(frozen=True)
class Coverage:
    """One table."""

    paper: str
    table: str
    title: str
    cells: int
    """Cells whose data a recipe tests on."""
    run: int
    """Cells with a run."""
    thrice: int
    """Cells with three runs or more."""
    printed: int
    """Cells with a run for which the paper prints a comparable value."""
    reached: int
    """Those whose mean is the paper's value or better."""


def fillable(table: Table) -> set[tuple[str, str]]:
    """Rows and columns whose data a recipe of the row tests on."""
    pairs = set()
    for recipe in (get_recipe(name) for name in recipes(table.paper)):
        if recipe.paper != table.paper:
            continue
        shown = {recipe.data.name, *tested_on(recipe)}
        for row in table.rows:
            name, _ = table.derived.get(row, (row, ""))
            sources = table.only.get(row, (table.name, *table.sources))
            if recipe.row == name and recipe.table in sources:
                pairs |= {
                    (row, n)
                    for n, c in table.columns.items()
                    if shown & set(c.data) and recipe.table in (c.tables or sources)
                }
    return pairs


def coverage(
    paper: str | None = None, folder: Path = RESULTS, older: bool = False
) -> list[Coverage]:
    """A line for every table, of one paper or of all. older: as in `cells`"""
    lines = []
    for table in list_tables(paper):
        run = [c for c in cells(table, folder, older) if c["protocol"] == "ours" and c["n"]]
        known = fillable(table) | {(c["row"], c["column"]) for c in run}
        printed = [c for c in run if table.compares(c)]
        reached = [
            c
            for c in printed
            if (c["paper_value"] - c["mean"]) * (-1 if table.columns[c["column"]].lower else 1) <= 0
        ]
        thrice = sum(c["n"] >= 3 for c in run)
        counts = (len(known), len(run), thrice, len(printed), len(reached))
        lines.append(Coverage(table.paper, table.name, table.title, *counts))
    return lines
