"""The papers' tables in a terminal, and as Markdown for README and docs."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table as RichTable
from rich.text import Text
from tyro.conf import Positional, arg

from torchcaps.cli.saying import RESULTS, console, print_json
from torchcaps.errors import Misused, TorchcapsError, nearest

if TYPE_CHECKING:
    from torchcaps.experiments.tables import Table

Words = Annotated[tuple[str, ...], arg(help_behavior_hint="")]


def table(
    paper: Annotated[str, Positional, arg(metavar="PAPER", help_behavior_hint="")] = "",
    name: Annotated[str | None, Positional, arg(metavar="TABLE", help_behavior_hint="")] = None,
    /,
    columns: Words = (),
    rows: Words = (),
    markdown: bool = False,
    older: bool = False,
    results: Path = RESULTS,
    json: bool = False,
) -> None:
    """A paper's table: our mean ± std (runs) and best, the paper's value, the difference.

    Without a paper: of every table the cells whose data recipes test on, those with runs, with
    three or more, and how many of those with a printed value are as printed or better.

    Examples: torchcaps table · torchcaps table robustness · torchcaps table sparse table1 --json

    Args:
        paper: The short name of the paper; default: an overview of all.
        name: One of its tables; default: all.
        columns: The columns that are shown; default: all.
        rows: The rows that are shown; default: all.
        markdown: Whether it is printed as Markdown.
        older: Whether runs of recipes as they once were count too.
        results: The folder of the recorded results.
        json: Whether the cells are printed as JSON.
    """
    from torchcaps.experiments import cells, get_table, list_tables

    if not paper:
        if name or columns or rows:
            raise Misused("Name the paper: torchcaps table robustness table1.")
        return _overview(results, older, markdown, json)
    chosen = [get_table(paper, name)] if name else list_tables(paper)
    _warn(paper, results)
    found = {t.name: _some(t, cells(t, results, older), columns, rows) for t in chosen}
    if json:
        return print_json([cell for part in found.values() for cell in part])
    for t in chosen:
        part = found[t.name]
        shown = list(dict.fromkeys(c["column"] for c in part))
        if markdown:
            print(as_markdown(t, shown, part))
            continue
        printed = {column for row in t.rows.values() for column in row}
        own = [column for column in shown if column in printed]
        more = [column for column in shown if column not in printed]
        for names in filter(None, (own, more)):
            console.print(_table(t, names, part, beyond=bool(own) and names is more))
        for said in repeated(part):
            console.print(said, style="dim", markup=False)


def benchmarks(
    ops: Annotated[tuple[str, ...], Positional, arg(metavar="OP", help_behavior_hint="")] = (),
    /,
    markdown: bool = False,
    results: Path = RESULTS,
    json: bool = False,
) -> None:
    """Recorded times and memory: of every operation the newest line of each implementation.

    Example: torchcaps benchmarks "training step" · torchcaps benchmarks dynamic --markdown

    Args:
        ops: Beginnings of names of operations; default: all.
        markdown: Whether it is printed as Markdown.
        results: The folder of the recorded results.
        json: Whether the lines are printed as JSON.
    """
    from torchcaps.train.results import newest

    fields = ("op", "passes", "shape", "dtype", "impl")
    file = results / "benchmarks.jsonl"
    if not file.exists():
        raise TorchcapsError(f"{file} is not here: --results FOLDER says where it is.")
    lines = [x for x in newest(file, fields) if "ms" in x]
    lines = [x for x in lines if not ops or x["op"].startswith(ops)]
    if ops and not lines:
        raise TorchcapsError(f"No operation in {file} is called {' or '.join(ops)}.")
    if json:
        return print_json(lines)
    heads = ("what", "shape", "dtype", "how", "ms", "MB", "commit")
    body = [
        (
            x["op"] + (f", {x['passes']} passes" if "passes" in x else ""),
            x["shape"].removeprefix(f"batch 128, {x['op']}").lstrip(", ") or "batch 128",
            x.get("dtype", ""), x["impl"], f"{x['ms']:.3g}", f"{x.get('peak_mb', 0):.0f}",
            x["commit"][:7],
        )
        for x in lines
    ]  # fmt: skip
    _print(heads, body, markdown)


def _warn(paper: str, results: Path) -> None:
    """Say where there are no results, or lines that cannot be read."""
    from torchcaps.train.results import parse_lines, results_file

    if not results_file(paper, results).exists():
        said = f"no results of {paper} in {results}/: the table has the paper's values alone."
        print(f"torchcaps: {said}", file=sys.stderr)
    for problem in parse_lines(results_file(paper, results))[1]:
        print(f"torchcaps: {problem}", file=sys.stderr)


def _overview(results: Path, older: bool, markdown: bool, json: bool) -> None:
    """A line a table: cells, those with a run, with three, and as printed or better."""
    from dataclasses import asdict

    from torchcaps.experiments.overview import overview

    found = overview(folder=results, older=older)
    if not list(results.glob("*.jsonl")):
        print(f"torchcaps: no results in {results}/: no cell has a run.", file=sys.stderr)
    else:
        for paper in dict.fromkeys(line.paper for line in found):
            _warn(paper, results)
    if json:
        return print_json([asdict(line) for line in found])
    heads = ("table", "cells", "with runs", "with three", "as printed")
    body = [
        (
            f"{x.paper} {x.table}", str(x.cells), str(x.run), str(x.thrice),
            f"{x.reached} of {x.printed}" if x.printed else "",
        )
        for x in found
    ]  # fmt: skip
    _print(heads, body, markdown)


def _print(heads: tuple[str, ...], body: list[tuple[str, ...]], markdown: bool) -> None:
    if markdown:
        rows = (heads, ["---"] * len(heads), *body)
        print("\n".join(f"| {' | '.join(row)} |" for row in rows))
        return
    shown = RichTable(*heads)
    for row in body:
        shown.add_row(*row)
    console.print(shown)


def _some(
    t: "Table", found: list[dict[str, Any]], columns: tuple[str, ...], rows: tuple[str, ...]
) -> list[dict[str, Any]]:
    """The cells of these columns and rows, in this order; none named: all."""
    for wanted, known in ((columns, list(t.columns)), (rows, list(t.rows))):
        for name in wanted:
            if name not in known:
                raise Misused(f"{t.name} has no {name!r}. {nearest(name, known)}")
    columns, rows = columns or tuple(t.columns), rows or tuple(t.rows)
    kept = [c for c in found if c["column"] in columns and c["row"] in rows]
    return sorted(kept, key=lambda c: (rows.index(c["row"]), columns.index(c["column"])))


def repeated(found: list[dict[str, Any]]) -> list[str]:
    """A sentence for each row with cells in which a seed was run more than once."""
    cells: dict[tuple[str, str], list[str]] = {}
    for c in found:
        if c["repeated"]:
            seeds = ", ".join(map(str, c["repeated"]))
            cells.setdefault((c["row"], seeds), []).append(c["column"])
    return [
        f"{row}: seed {seeds} was run more than once "
        f"({', '.join(columns) if len(columns) < 4 else f'{len(columns)} columns'}); the mean of "
        "its runs counts."
        for (row, seeds), columns in cells.items()
    ]


def _by_row(found: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, dict[str, Any]]]:
    rows: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for c in found:
        rows.setdefault((c["row"], c["protocol"]), {})[c["column"]] = c
    return rows


def as_markdown(t: "Table", columns: list[str], found: list[dict[str, Any]]) -> str:
    """Rows without any number, ours or the paper's, are left out."""
    printed = {c["column"] for c in found if c["paper_value"] is not None}
    heads = [h for c in columns for h in ([c, "paper"] if c in printed else [c])]
    lines = [f"| | {' | '.join(heads)} |", f"| --- |{' --- |' * len(heads)}"]
    for (row, protocol), cells in _by_row(found).items():
        if not any(c["n"] or c["paper_value"] is not None for c in cells.values()):
            continue
        name = row if protocol == "ours" else f"{row} [{protocol}]"
        line = []
        for column in columns:
            c = cells[column]
            line.append(_cell(c, t.columns[column].digits, best=False))
            if column in printed:
                line.append("" if c["paper_value"] is None else f"{c['paper_value']}")
        lines.append(f"| {name} | {' | '.join(line)} |")
    return "\n".join([*lines, *(f"\n{said}" for said in repeated(found))])


def _table(t: "Table", columns: list[str], found: list[dict[str, Any]], beyond: bool) -> RichTable:
    wide = len(columns) > 2  # then the paper's value goes below ours
    printed = any(name in row for row in t.rows.values() for name in columns)
    compared = printed and not wide
    notes = [f"{n}: {t.columns[n].note}" for n in columns if t.columns[n].note]
    notes += ["below ours: the paper's"] if wide and printed and not beyond else []
    title = f"{t.paper} {t.name}: {t.title}" + (", beyond the paper" if beyond else "")
    shown = RichTable(title=title, caption="; ".join(notes) or None)
    beside = ["paper", "diff"] if compared else []
    heads = ["row", *(head for column in columns for head in (column, *beside))]
    body = []
    for (row, protocol), cells in _by_row(found).items():
        line = [row if protocol == "ours" else rf"{row} \[{protocol}]"]
        for column in columns:
            c, digits = cells[column], t.columns[column].digits
            value = "" if c["paper_value"] is None else f"{c['paper_value']}"
            if wide:
                ours = [f"{c['mean']:.{digits}f} ({c['n']})"] if c["n"] else ["–"]
                ours += [f"± {c['std']:.{digits}f}"] if c["std"] is not None else []
                line.append("\n".join(ours + ([f"[dim]{value}[/dim]"] if value else [])))
            else:
                line += [_cell(c, digits)]
                line += [value, _difference(c, digits)] if compared else []
        body.append(line)
    for head, width in zip(heads, _widths(heads, body, console.width), strict=True):
        shown.add_column(head, overflow="fold", width=width)
    for line in body:
        shown.add_row(*line)
    return shown


def _widths(heads: list[str], body: list[list[str]], room: int) -> list[int]:
    """Widths of columns that fit into a terminal: no number breaks, only heads may."""
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


def _cell(c: dict[str, Any], n: int, best: bool = True) -> str:
    if not c["n"]:
        return "–"
    if c["n"] == 1:
        return f"{c['mean']:.{n}f} (1)"
    most = f", best {c['best']:.{n}f}" if best else ""
    return f"{c['mean']:.{n}f} ± {c['std']:.{n}f} ({c['n']}){most}"


def _difference(c: dict[str, Any], n: int) -> str:
    known = c["n"] and c["paper_value"] is not None
    return f"{c['mean'] - c['paper_value']:+.{n}f}" if known else ""
