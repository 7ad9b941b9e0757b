"""The papers' tables in a terminal."""

from pathlib import Path
from typing import Any

from rich.table import Table as RichTable
from tyro.conf import Positional

from torchcaps.cli.show import console, print_json
from torchcaps.experiments import cells, get_table, tables
from torchcaps.experiments.tables import Table


def table(
    paper: Positional[str],
    name: Positional[str | None] = None,
    /,
    results: Path = Path("results"),
    json: bool = False,
) -> None:
    """A paper's table: our mean ± std (runs) and best, the paper's value, the difference.

    Examples: torchcaps table robustness · torchcaps table robustness table1 --json

    Args:
        paper: Short name of the paper.
        name: One of its tables; default: all.
        results: Folder of the recorded results.
        json: Print JSON.
    """
    chosen = [get_table(paper, name)] if name else tables(paper)
    if json:
        return print_json([cell for t in chosen for cell in cells(t, results)])
    for t in chosen:
        found = cells(t, results)
        printed = {name for row in t.rows.values() for name in row}
        own = [name for name in t.columns if name in printed]
        more = [name for name in t.columns if name not in printed]
        for columns in filter(None, (own, more)):
            console.print(_table(t, columns, found, beyond=bool(own) and columns is more))


def _table(t: Table, columns: list[str], found: list[dict[str, Any]], beyond: bool) -> RichTable:
    wide = len(columns) > 2  # then the paper's value goes below ours
    compared = not wide and any(name in row for row in t.rows.values() for name in columns)
    notes = [f"{n}: {t.columns[n].note}" for n in columns if t.columns[n].note]
    notes += ["below ours: the paper's"] if wide and not beyond else []
    title = f"{t.paper} {t.name}: {t.title}" + (", beyond the paper" if beyond else "")
    shown = RichTable(title=title, caption="; ".join(notes) or None)
    shown.add_column("row", no_wrap=True)
    for column in columns:
        shown.add_column(column)
        if compared:
            shown.add_column("paper")
            shown.add_column("diff")
    rows: dict[tuple[str, str], list[str]] = {}
    for c in found:
        if c["column"] not in columns:
            continue
        digits = t.columns[c["column"]].digits
        line = rows.setdefault((c["row"], c["protocol"]), [])
        printed = "" if c["paper_value"] is None else f"{c['paper_value']}"
        if wide:
            ours = [f"{c['mean']:.{digits}f} ({c['n']})"] if c["n"] else ["–"]
            ours += [f"± {c['std']:.{digits}f}"] if c["std"] is not None else []
            line.append("\n".join(ours + ([f"[dim]{printed}[/dim]"] if printed else [])))
        else:
            line += [_cell(c, digits)]
            line += [printed, _difference(c, digits)] if compared else []
    for (row, protocol), line in rows.items():
        shown.add_row(row if protocol == "ours" else rf"{row} \[{protocol}]", *line)
    return shown


def _cell(c: dict[str, Any], n: int) -> str:
    if not c["n"]:
        return "–"
    if c["n"] == 1:
        return f"{c['mean']:.{n}f} (1)"
    return f"{c['mean']:.{n}f} ± {c['std']:.{n}f} ({c['n']}), best {c['best']:.{n}f}"


def _difference(c: dict[str, Any], n: int) -> str:
    known = c["n"] and c["paper_value"] is not None
    return f"{c['mean'] - c['paper_value']:+.{n}f}" if known else ""
