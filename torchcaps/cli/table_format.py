"""Layout of a table's cells: as Markdown, or in a terminal, in pieces that fit its width."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.table import Table as RichTable
from rich.text import Text

from torchcaps.cli.console import console

if TYPE_CHECKING:
    from torchcaps.papers.tables import Column, Table

HEAD = 7
"""Letters of a head's word that stay together where there is little room."""


def repeated(entries: list[dict[str, Any]]) -> list[str]:
    """A sentence for rows that have the same seeds more than once, in as many cells."""
    cells: dict[tuple[str, str], list[str]] = {}
    for c in entries:
        if c["repeated"]:
            seeds = f"seed{'s' * (len(c['repeated']) > 1)} {', '.join(map(str, c['repeated']))}"
            cells.setdefault((c["row"], seeds), []).append(c["column"])
    rows: dict[tuple[str, str], list[str]] = {}
    for (row, seeds), columns in cells.items():
        named = ", ".join(columns) if len(columns) < 4 else f"{len(columns)} columns"
        rows.setdefault((seeds, named), []).append(row)
    return [
        f"{'; '.join(names)}: {seeds} {'were' if ',' in seeds else 'was'} run more than once "
        f"({columns}); the mean of the runs counts."
        for (seeds, columns), names in rows.items()
    ]


def _by_row(entries: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, dict[str, Any]]]:
    rows: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for c in entries:
        rows.setdefault((c["row"], c["protocol"]), {})[c["column"]] = c
    return rows


def as_markdown(t: "Table", columns: list[str], entries: list[dict[str, Any]]) -> str:
    """Rows without any number, ours or the paper's, are left out."""
    printed = {c["column"] for c in entries if c["paper_value"] is not None}
    heads = [h for c in columns for h in ([c, "paper"] if c in printed else [c])]
    lines = [f"| | {' | '.join(heads)} |", f"| --- |{' --- |' * len(heads)}"]
    for (row, protocol), cells in _by_row(entries).items():
        if not any(c["n"] or c["paper_value"] is not None for c in cells.values()):
            continue
        name = row if protocol == "ours" else f"{row} [{protocol}]"
        line = []
        for column in columns:
            c = cells[column]
            line.append(_cell(c, t.columns[column], best=False))
            if column in printed:
                line.append("" if c["paper_value"] is None else f"{c['paper_value']}")
        lines.append(f"| {name} | {' | '.join(line)} |")
    return "\n".join([*lines, *(f"\n{note}" for note in repeated(entries))])


def pieces(
    t: "Table", columns: list[str], entries: list[dict[str, Any]], beyond: bool
) -> Iterator[RichTable]:
    """The table, in several pieces where a terminal has no room for all of its columns."""
    wide = len(columns) > 2  # then the paper's value goes below ours
    printed = any(name in row for row in t.rows.values() for name in columns)
    beside = ["paper", "diff"] if printed and not wide else []
    title = f"{t.paper} {t.name}: {t.title}" + (", beyond the paper" if beyond else "")
    while columns:
        count = len(columns)
        while True:
            part = columns[:count]
            heads = ["row", *(head for column in part for head in (column, *beside))]
            body = _body(t, part, entries, wide, bool(beside))
            widths = _widths(heads, body, console.width)
            if count == 1 or _whole(widths) <= console.width:
                break
            count -= 1
        notes = [f"{n}: {t.columns[n].note}" for n in part if t.columns[n].note]
        notes += ["below ours: the paper's"] if wide and printed and not beyond else []
        notes += ["printed values measure something else"] if set(t.unlike) & set(part) else []
        notes += [
            f"{row}: the printed value measures something else" for row in t.unlike if row in t.rows
        ]
        shown = RichTable(title=title, caption="; ".join(notes) or None)
        for head, width in zip(heads, widths, strict=True):
            shown.add_column(head, overflow="fold", width=width)
        for line in body:
            shown.add_row(*map(Text.from_markup, line))
        yield shown
        columns = columns[count:]


def _body(
    t: "Table", columns: list[str], entries: list[dict[str, Any]], wide: bool, compared: bool
) -> list[list[str]]:
    body = []
    for (row, protocol), cells in _by_row(entries).items():
        line = [row if protocol == "ours" else rf"{row} \[{protocol}]"]
        for column in columns:
            c, where = cells[column], t.columns[column]
            digits = where.digits
            value = "" if c["paper_value"] is None else f"{c['paper_value']}"
            if wide:
                ours = [f"{_mean(c, digits)} ({c['n']})"] if c["n"] else [_empty(where)]
                ours += [f"± {_spread(c):.{digits}f}"] if c["std"] is not None else []
                line.append("\n".join(ours + ([f"[dim]{value}[/dim]"] if value else [])))
            else:
                line += [_cell(c, where)]
                line += [value, _difference(t, c)] if compared else []
        body.append(line)
    return body


def _widths(heads: list[str], body: list[list[str]], room: int) -> list[int]:
    """Widths of columns that fit into a terminal, if they can: no number breaks, only long words
    of heads may.
    """
    plain = [
        [Text.from_markup(text).plain for text in column] for column in zip(*body, strict=True)
    ]
    words = [
        max(len(x[:HEAD] if part is head else x) for part in (head, *texts) for x in part.split())
        for head, texts in zip(heads, plain, strict=True)
    ]
    lines = [
        max(len(x) for t in (head, *texts) for x in t.splitlines() or [""])
        for head, texts in zip(heads, plain, strict=True)
    ]
    limit = max(lines)
    while limit and _whole(_within(lines, words, limit)) > room:
        limit -= 1
    return _within(lines, words, limit)


def _whole(widths: list[int]) -> int:
    """The width of a table whose columns are so wide."""
    return sum(widths) + 3 * len(widths) + 1


def _within(lines: list[int], words: list[int], limit: int) -> list[int]:
    return [max(word, min(line, limit)) for line, word in zip(lines, words, strict=True)]


def _empty(column: "Column") -> str:
    return "not run" if column.not_run else "–"


def _cell(c: dict[str, Any], column: "Column", best: bool = True) -> str:
    n = column.digits
    if not c["n"]:
        return _empty(column)
    if c["n"] == 1:
        return f"{_mean(c, n)} (1)"
    most = f", best {c['best']:.{n}f}" if best and c["best"] is not None else ""
    return f"{_mean(c, n)} ± {_spread(c):.{n}f} ({c['n']}){most}"


def _mean(c: dict[str, Any], digits: int) -> str:
    """The mean of a cell, with its sign if it is of differences."""
    return f"{c['mean']:{'+' if 'interval' in c else ''}.{digits}f}"


def _spread(c: dict[str, Any]) -> float:
    """What stands after ±: the standard deviation over seeds, or of a difference its interval."""
    return c.get("interval", c["std"])


def _difference(t: "Table", c: dict[str, Any]) -> str:
    if not c["n"] or not t.compares(c):
        return ""
    return f"{c['mean'] - c['paper_value']:+.{t.columns[c['column']].digits}f}"
