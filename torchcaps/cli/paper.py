"""Commands for the papers: recipes, tables and recorded results."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table as RichTable
from tyro.conf import Positional, arg

from torchcaps.cli.console import complain, console, print_json, say
from torchcaps.cli.parse import AtOnce, Data, Env, On, Runs, Text
from torchcaps.cli.table_format import as_markdown, pieces, repeated
from torchcaps.errors import TorchcapsError, UsageError, nearest

if TYPE_CHECKING:
    from torchcaps.papers.tables import Table

Paper = Annotated[str, Positional, arg(metavar="PAPER")]
MaybePaper = Annotated[str, Positional, arg(metavar="PAPER", help_behavior_hint="")]
Tables = Annotated[tuple[str, ...], Positional, arg(metavar="TABLE", help_behavior_hint="")]
Recipe = Annotated[str, arg(metavar="RECIPE", help_behavior_hint="")]
Words = Annotated[tuple[str, ...], arg(help_behavior_hint="")]
RESULTS = Path("results")  # papers.records.RESULTS, without its imports


def list_(paper: MaybePaper = "", /, json: bool = False) -> None:
    """List the papers' recipes.

    Example: torchcaps paper list robustness

    Args:
        paper: Short name of a paper; default: all.
        json: Print as JSON.
    """
    from torchcaps.cli.catalog import read

    catalog = read()
    if paper and paper not in catalog["papers"]:
        raise UsageError(f"Unknown paper {paper!r}. {nearest(paper, catalog['papers'])}")
    prefix = f"{paper}/" if paper else ""
    recipes = {n: text for n, text in catalog["recipes"].items() if n.startswith(prefix)}
    if json:
        return print_json({"recipes": recipes})
    width = max(map(len, recipes), default=0)
    for name, summary in recipes.items():
        say(f"{name:{width}}  {summary}")


def run(
    paper: Paper,
    tables: Tables = (),
    /,
    seeds: int = 3,
    at_once: AtOnce = 0,
    on: On = "local",
    env: Env = (),
    data_root: Annotated[str, arg(metavar="FOLDER", help_behavior_hint="")] = "",
    results: Path = RESULTS,
    dry: bool = False,
    protocol: str = "ours",
    only: Annotated[tuple[str, ...], arg(metavar="RECIPE")] = (),
    artifacts: Annotated[str, arg(metavar="FOLDER", help_behavior_hint="")] = "",
) -> None:
    """Run what results/ lacks of a paper's tables, then print them beside the paper's values.

    Interrupted runs are resumed; a failed one is named and runs again the next time.

    Example: torchcaps paper run robustness table1 --seeds 5 --at-once 4

    Args:
        paper: Short name of the paper.
        tables: Some of its tables; default: all.
        seeds: Number of runs for each row.
        at_once: Number of runs side by side; default: 1 on this machine, all on a cluster.
        on: Where: local, slurm[:partition=…,time=…,gpus=…] or ray[:HOST:PORT].
        env: Environment variables of this process that runs elsewhere get too, by name.
        data_root: Folder of the data sets.
        results: Folder of the recorded results.
        dry: Print the missing runs and their estimated time.
        protocol: Whose protocol: ours, or paper, if it differs from ours; its rows are marked.
        only: Recipes to run, with * for any characters: 'mcae/table1/imagewoof*'.
        artifacts: Folder in which runs keep what they compile, for runs that differ only in seed.
            It is code: use a folder that only you write.
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from torchcaps.papers.reproduce import missing, reproduce, seconds_before
    from torchcaps.places.run import check_place, with_env

    if seeds < 1 or at_once < 0:
        raise UsageError("--seeds and --at-once are at least 1.")
    on = with_env(on, env)
    check_place(on)
    jobs = missing(paper, tables, seeds, results, protocol, only)
    estimates = seconds_before(paper, results, protocol)
    for job in jobs if dry else ():
        comment = "never run"
        if estimate := estimates.get(job.recipe):
            version = "" if estimate.as_today else " in another version"
            comment = f"{estimate.seconds:,.0f} s{version}"
        commands = filter(None, ("" if job.recorded else job.command, job.eval_command))
        say(f"{' && '.join(commands)}  # {comment}")
    known = [estimates[job.recipe].seconds for job in jobs if job.recipe in estimates]
    more = f"; {len(jobs) - len(known)} were never run" if len(known) < len(jobs) else ""
    say(f"{len(jobs)} runs, {sum(known):,.0f} s for {len(known)} by earlier runs{more}.")
    if dry:
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TimeElapsedColumn(), TimeRemainingColumn())  # fmt: skip
    failed: list[Any] = []
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(f"{paper} {' '.join(tables)}", total=len(jobs))
        for done in reproduce(jobs, at_once, data_root, results, on, artifacts):
            progress.advance(task)
            if done.error:
                repeats = any(done.error == other.error for other in failed)
                failed.append(done)
                error = "the same error as above." if repeats else done.error
                message = f"{done.job.recipe} seed {done.job.seed}: {error}"
                progress.console.print(message, style="yellow", markup=False)
    for name in tables or (None,):
        table(paper, name, results=results)
    if failed:
        raise TorchcapsError(
            f"{len(failed)} of {len(jobs)} runs failed. Run the command again to retry them."
        )


def record(runs: Runs, /, results: Path = RESULTS, note: Text = "") -> None:
    """Append finished runs to results/<paper>.jsonl, from which the tables are made.

    For runs that were trained elsewhere or without --record; a run is never recorded twice.

    Example: torchcaps paper record runs/robustness-table1-capsnet-s0 --note "shared GPU"

    Args:
        runs: Folders of finished runs.
        results: Folder of the recorded results.
        note: A remark about these runs, added as a line of its own.
    """
    from torchcaps.papers.records import append_record
    from torchcaps.papers.reproduce import eval_command, shown_beyond
    from torchcaps.training.run import Run

    if not runs:
        raise UsageError("Name a run: torchcaps paper record runs/demo-capsnet-s0.")
    for folder in runs:
        opened = Run.open(folder)
        say(f"{folder}: {append_record(opened.record(), results, note)}")
        if more := shown_beyond(opened.recipe()):
            say(f"The paper's table has more metrics: {eval_command(folder, more)}")


def amend(
    paper: Paper,
    /,
    because: Text = "",
    recipe: Recipe = "",
    run: Annotated[str, arg(metavar="ID", help_behavior_hint="")] = "",
    seed: Annotated[int | None, arg(metavar="INT", help_behavior_hint="")] = None,
    data: Data = "",
    metric: Text = "",
    value: Annotated[float | None, arg(metavar="NUMBER", help_behavior_hint="")] = None,
    protocol: str = "",
    note: Text = "",
    set_data: Data = "",
    set_recipe: Recipe = "",
    old_pretraining: Recipe = "",
    set_digests: bool = False,
    results: Path = RESULTS,
) -> None:
    """Correct recorded results by an appended amendment; the lines themselves stay.

    Without --set-* and --note, the matching lines are superseded. Only lines with the digest and
    revision of the new recipe are moved to it.

    Examples: torchcaps paper amend mcae --recipe mcae/best --because "patches of 4 now" ·
    torchcaps paper amend robustness --data affnist-like:mnist --set-data affnist-like:mnist,shift=8
    --because "the default changed"

    Args:
        paper: Short name of the paper.
        because: Reason for the amendment.
        recipe: Lines of this recipe.
        run: Lines of this run, by its identity.
        seed: Lines of this seed.
        data: Lines of this data set.
        metric: Lines of this metric.
        value: Lines of this value.
        protocol: Lines of this protocol.
        note: Add a remark, in place of superseding the lines.
        set_data: Give the lines the full name of their data set.
        set_recipe: Move the lines of --recipe to the recipe that has their configuration today.
        old_pretraining: Former name of the pretraining of moved lines.
        set_digests: Give lines without a digest that of their recipe today.
        results: Folder of the recorded results.
    """
    from torchcaps.papers.records import amend as append_amendment
    from torchcaps.papers.records import results_file
    from torchcaps.papers.tables import todays_digests
    from torchcaps.training.hardware import best_device
    from torchcaps.training.provenance import environment
    from torchcaps.training.registry import digest, get_recipe, revision

    match: dict[str, Any] = {"recipe": recipe, "run": run, "seed": seed, "data": data}
    match |= {"metric": metric, "value": value, "protocol": protocol}
    kind, facts = "supersede", {"because": because}
    if not because and not set_digests and not note:
        raise UsageError("Give the reason: --because TEXT.")
    if set_digests:
        digests = todays_digests(paper, results)
        if not digests:
            raise TorchcapsError(f"Every line of {paper} has the digest of its recipe.")
        kind, match, facts = "digests", {"paper": paper}, {"digests": digests}
    elif note:
        kind, facts = "note", {"note": note}
    elif set_data:
        kind, facts = "rename", {"data": set_data, **facts}
    elif set_recipe:
        match["protocol"] = protocol = protocol or "ours"
        target = get_recipe(set_recipe, "ours" if protocol == "modified" else protocol)
        kind = "move"
        facts = {"recipe": set_recipe, "table": target.table, "row": target.row, **facts}
        if protocol != "modified":
            match |= {"digest": digest(target, old_pretraining), "revision": revision(target)}
            facts |= {"digest": digest(target)} if old_pretraining else {}
    match = {name: value for name, value in match.items() if value not in ("", None)}
    if not match:
        raise UsageError("Choose lines: --recipe, --run, --seed, --data or --metric.")
    path = results_file(paper, results)
    count = append_amendment(path, kind, match, facts, environment(best_device()))
    say(f"Amended {count} lines of {path}.")


def table(
    paper: MaybePaper = "",
    name: Annotated[str | None, Positional, arg(metavar="TABLE", help_behavior_hint="")] = None,
    /,
    columns: Words = (),
    rows: Words = (),
    markdown: bool = False,
    older: bool = False,
    results: Path = RESULTS,
    json: bool = False,
) -> None:
    """Print a paper's table: our mean ± std (runs) and best, the paper's value, the difference.

    Without a paper: the coverage of every table: cells, cells with runs, with three or more, and
    cells that match the paper where it measures the same.

    Examples: torchcaps paper table · torchcaps paper table sparse table1 --json

    Args:
        paper: Short name of the paper; default: the coverage of all.
        name: One of its tables; default: all.
        columns: Columns to show; default: all.
        rows: Rows to show; default: all.
        markdown: Print as Markdown.
        older: Count runs of earlier versions of the recipes, too.
        results: Folder of the recorded results.
        json: Print as JSON.
    """
    from torchcaps.papers.tables import cells, get_table, list_tables

    if not paper:
        if name or columns or rows:
            raise UsageError("Name the paper: torchcaps paper table robustness table1.")
        return _coverage(results, older, markdown, json)
    chosen = [get_table(paper, name)] if name else list_tables(paper)
    _warn(paper, results)
    parts = {t.name: _selected(t, cells(t, results, older), columns, rows) for t in chosen}
    if json:
        return print_json([cell for part in parts.values() for cell in part])
    for t in chosen:
        part = parts[t.name]
        shown = list(dict.fromkeys(c["column"] for c in part))
        if markdown:
            print(as_markdown(t, shown, part))
            continue
        printed = {column for row in t.rows.values() for column in row}
        in_paper = [column for column in shown if column in printed]
        others = [column for column in shown if column not in printed]
        for names in filter(None, (in_paper, others)):
            for piece in pieces(t, names, part, beyond=bool(in_paper) and names is others):
                console.print(piece)
        for note in repeated(part):
            console.print(note, style="dim", markup=False)


def benchmarks(
    ops: Annotated[tuple[str, ...], Positional, arg(metavar="OP", help_behavior_hint="")] = (),
    /,
    markdown: bool = False,
    results: Path = RESULTS,
    json: bool = False,
) -> None:
    """Print recorded times and memory: the newest line of each operation and implementation.

    Example: torchcaps paper benchmarks "training step"

    Args:
        ops: First words of operations; default: all.
        markdown: Print as Markdown.
        results: Folder of the recorded results.
        json: Print as JSON.
    """
    from torchcaps.papers.records import newest

    fields = ("op", "passes", "shape", "dtype", "impl")
    file = results / "benchmarks.jsonl"
    if not file.exists():
        raise TorchcapsError(f"{file}: no such file. Name its folder: --results FOLDER.")
    lines = [x for x in newest(file, fields) if "ms" in x]
    lines = [x for x in lines if not ops or x["op"].startswith(ops)]
    if ops and not lines:
        raise TorchcapsError(f"{file} has no operation {' or '.join(ops)}.")
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
    """Warn of missing results and of malformed lines."""
    from torchcaps.papers.records import parse_lines, results_file

    if not results_file(paper, results).exists():
        message = f"no results of {paper} in {results}/: the table has the paper's values alone."
        complain(message)
    for problem in parse_lines(results_file(paper, results))[1]:
        complain(problem)


def _coverage(results: Path, older: bool, markdown: bool, json: bool) -> None:
    """A line for each table: cells, those with a run, with three, and those that match."""
    from dataclasses import asdict

    from torchcaps.papers.coverage import coverage

    lines = coverage(folder=results, older=older)
    if not list(results.glob("*.jsonl")):
        complain(f"no results in {results}/: no cell has a run.")
    else:
        for paper in dict.fromkeys(line.paper for line in lines):
            _warn(paper, results)
    if json:
        return print_json([asdict(line) for line in lines])
    heads = ("table", "cells", "with runs", "with three", "as printed")
    body = [
        (
            f"{x.paper} {x.table}", str(x.cells), str(x.run), str(x.thrice),
            f"{x.reached} of {x.printed}" if x.printed else "",
        )
        for x in lines
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


def _selected(
    t: "Table", cells: list[dict[str, Any]], columns: tuple[str, ...], rows: tuple[str, ...]
) -> list[dict[str, Any]]:
    """The cells of these columns and rows, in this order; none named: all."""
    for names, known in ((columns, list(t.columns)), (rows, list(t.rows))):
        for name in names:
            if name not in known:
                raise UsageError(f"{t.name} has no {name!r}. {nearest(name, known)}")
    columns, rows = columns or tuple(t.columns), rows or tuple(t.rows)
    kept = [c for c in cells if c["column"] in columns and c["row"] in rows]
    return sorted(kept, key=lambda c: (rows.index(c["row"]), columns.index(c["column"])))
