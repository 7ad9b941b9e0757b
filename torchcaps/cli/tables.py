"""The papers' tables in a terminal, and as Markdown for README and docs."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table as RichTable
from tyro.conf import Positional, arg

from torchcaps.cli.laying import as_markdown, pieces, repeated
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
            for piece in pieces(t, names, part, beyond=bool(own) and names is more):
                console.print(piece)
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
