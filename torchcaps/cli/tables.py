"""The papers' tables in a terminal."""

from pathlib import Path
from typing import Any

from rich.table import Table as RichTable
from rich.text import Text
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
    printed = any(name in row for row in t.rows.values() for name in columns)
    compared = printed and not wide
    notes = [f"{n}: {t.columns[n].note}" for n in columns if t.columns[n].note]
    notes += ["below ours: the paper's"] if wide and printed and not beyond else []
    title = f"{t.paper} {t.name}: {t.title}" + (", beyond the paper" if beyond else "")
    shown = RichTable(title=title, caption="; ".join(notes) or None)
    beside = ["paper", "diff"] if compared else []
    heads = ["row", *(head for column in columns for head in (column, *beside))]
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
    names = [row if protocol == "ours" else rf"{row} \[{protocol}]" for row, protocol in rows]
    body = [[name, *line] for name, line in zip(names, rows.values(), strict=True)]
    for head, width in zip(heads, _widths(heads, body, console.width), strict=True):
        shown.add_column(head, overflow="fold", width=width)
    for line in body:
        shown.add_row(*line)
    return shown


def _widths(heads: list[str], body: list[list[str]], room: int) -> list[int]:
    """Of the columns, so that they fit into a terminal: no number breaks, only heads may."""
    plain = [
        [Text.from_markup(text).plain for text in column] for column in zip(*body, strict=True)
    ]
    words = [max((len(x) for t in texts for x in t.split()), default=0) for texts in plain]
    lines = [
        max(len(x) for t in (head, *texts) for x in t.splitlines() or [""])
        for head, texts in zip(heads, plain, strict=True)
    ]
    limit = max(lines)
    while limit and sum(_within(lines, words, limit)) + 3 * len(lines) + 1 > room:
        limit -= 1
    return _within(lines, words, limit)


def _within(lines: list[int], words: list[int], limit: int) -> list[int]:
    return [max(word, min(line, limit)) for line, word in zip(lines, words, strict=True)]


def _cell(c: dict[str, Any], n: int) -> str:
    if not c["n"]:
        return "–"
    if c["n"] == 1:
        return f"{c['mean']:.{n}f} (1)"
    return f"{c['mean']:.{n}f} ± {c['std']:.{n}f} ({c['n']}), best {c['best']:.{n}f}"


def _difference(c: dict[str, Any], n: int) -> str:
    known = c["n"] and c["paper_value"] is not None
    return f"{c['mean'] - c['paper_value']:+.{n}f}" if known else ""
