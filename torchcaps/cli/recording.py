"""Commands that keep results: record them, amend them, run what the tables lack."""

from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from torchcaps.cli.parse import Data, RecipeName, RunId, Runs, Seed, Text
from torchcaps.cli.saying import RESULTS, Paper, console, say_beyond
from torchcaps.errors import Misused, TorchcapsError

Tables = Annotated[tuple[str, ...], Positional, arg(metavar="TABLE", help_behavior_hint="")]


def record(runs: Runs, /, results: Path = RESULTS, note: Text = "") -> None:
    """Append finished runs to results/<paper>.jsonl, from which the tables are made.

    For runs that were trained elsewhere, or without --record; a run is never recorded twice.

    Example: torchcaps record runs/robustness-table1-capsnet-s0 --note "other runs shared the GPU"

    Args:
        runs: Folders of finished runs.
        results: The folder of the recorded results.
        note: A remark about these runs, which becomes a line of its own.
    """
    from torchcaps.train.results import append_record
    from torchcaps.train.run import Run

    if not runs:
        raise Misused("Name the run: torchcaps record runs/demo-capsnet-s0.")
    for folder in runs:
        run = Run.open(folder)
        console.print(f"{folder}: {append_record(run.record(), results, note)}")
        say_beyond(run)


def supersede(
    paper: Paper,
    /,
    because: Text,
    recipe: RecipeName = "",
    run: RunId = "",
    seed: Seed = None,
    data: Data = "",
    results: Path = RESULTS,
) -> None:
    """Say of recorded lines that they count no more; the lines themselves stay as they are.

    Example: torchcaps supersede mcae --recipe mcae/best --because "best has patches of 4 now"

    Args:
        paper: The short name of the paper.
        because: The reason, which stands in the amendment.
        recipe: The recipe whose lines are meant.
        run: The identity of one run, as its lines have it.
        seed: The seed of the lines that are meant.
        data: The data set of the lines that are meant.
        results: The folder of the recorded results.
    """
    match = {"recipe": recipe, "run": run, "seed": seed, "data": data}
    _amend(paper, "supersede", match, {"because": because}, results)


def rename(
    paper: Paper,
    data: Annotated[str, Positional, arg(metavar="DATA")],
    full: Annotated[str, Positional, arg(metavar="FULL-NAME")],
    /,
    because: Text,
    results: Path = RESULTS,
) -> None:
    """Give the data set of recorded lines its full name, where a default has changed since.

    Example: torchcaps rename robustness affnist-like:mnist affnist-like:mnist,shift=8 --because "…"

    Args:
        paper: The short name of the paper.
        data: The data set as the lines have it.
        full: The name that says which data set it was.
        because: The reason, which stands in the amendment.
        results: The folder of the recorded results.
    """
    _amend(paper, "rename", {"data": data}, {"data": full, "because": because}, results)


def adopt(paper: Paper, /, results: Path = RESULTS) -> None:
    """Take recorded lines that do not say which recipe they are of for those of today's recipes.

    They then count in tables until that recipe changes. For results from before lines said so.

    Example: torchcaps adopt robustness

    Args:
        paper: The short name of the paper.
        results: The folder of the recorded results.
    """
    from torchcaps.experiments.tables import todays_digests

    digests = todays_digests(paper, results)
    if not digests:
        raise TorchcapsError(f"Every line of {paper} says which recipe it is of.")
    _amend(paper, "digests", {"paper": paper}, {"digests": digests}, results)


def move(
    paper: Paper,
    old: Annotated[str, Positional, arg(metavar="OLD-RECIPE")],
    new: Annotated[str, Positional, arg(metavar="NEW-RECIPE")],
    /,
    because: Text,
    protocol: str = "ours",
    before: RecipeName = "",
    results: Path = RESULTS,
) -> None:
    """Give recorded lines to the recipe that has their setting today, and to its row.

    For a recipe whose name now stands for another setting. Only lines with the new recipe's own
    digest and revision are moved, so none comes under a setting that it was not measured with; of
    the protocol `modified` those that changed a field of the recipe that was called so.

    Example: torchcaps move inverted inverted/table1/em-resnet inverted/table1/em-resnet-window
    --because "…"

    Args:
        paper: The short name of the paper.
        old: The recipe as the lines have it.
        new: The recipe that has their setting today.
        because: The reason, which stands in the amendment.
        protocol: The protocol of the lines that are meant: ours, paper or modified.
        before: What the pretraining of these lines was called, where that was renamed too.
        results: The folder of the recorded results.
    """
    from torchcaps.experiments import get_recipe
    from torchcaps.train.registry import digest, revision

    recipe = get_recipe(new, "ours" if protocol == "modified" else protocol)
    facts = {"recipe": new, "table": recipe.table, "row": recipe.row, "because": because}
    match: dict[str, Any] = {"recipe": old, "protocol": protocol}
    if protocol != "modified":
        match |= {"digest": digest(recipe, before), "revision": revision(recipe)}
        facts |= {"digest": digest(recipe)} if before else {}
    _amend(paper, "move", match, facts, results)


def _amend(paper: str, kind: str, match: Any, facts: dict[str, Any], results: Path) -> None:
    from torchcaps.train.record import best_device, environment
    from torchcaps.train.results import amend, results_file

    match = {name: value for name, value in match.items() if value not in ("", None)}
    if not match:
        raise Misused("Say which lines: --recipe, --run, --seed or --data.")
    path = results_file(paper, results)
    where = environment(best_device())
    console.print(f"{amend(path, kind, match, facts, where)} lines of {path} are amended.")


def reproduce(
    paper: Paper,
    tables: Tables = (),
    /,
    seeds: int = 3,
    at_once: int = 1,
    data_root: Annotated[str, arg(metavar="FOLDER", help_behavior_hint="")] = "",
    results: Path = RESULTS,
    dry: bool = False,
    protocol: str = "ours",
    only: Annotated[tuple[str, ...], arg(metavar="RECIPE")] = (),
) -> None:
    """Run what results/ lacks of a paper's tables, then print them beside the paper's values.

    Runs that were stopped go on where they were; one that fails is named, for the next time.

    Example: torchcaps reproduce robustness table1 --seeds 5 --at-once 4

    Args:
        paper: The short name of the paper.
        tables: Some of its tables; default: all.
        seeds: How many runs every row should have.
        at_once: How many runs go side by side; on one GPU they take their steps in turns.
        data_root: The folder of the data sets.
        results: The folder of the recorded results.
        dry: Whether it only says what would be run, and how long such runs took before.
        protocol: `paper`: as the paper did it where ours differs, in rows marked so.
        only: Recipes that are run, of those that are lacking: 'mcae/table1/imagewoof*'.
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from torchcaps.cli.tables import table
    from torchcaps.experiments.reproduce import missing, seconds_before
    from torchcaps.experiments.reproduce import reproduce as run_all

    if seeds < 1 or at_once < 1:
        raise Misused("--seeds and --at-once are at least 1.")
    jobs = missing(paper, tables, seeds, results, protocol, only)
    before = seconds_before(paper, results, protocol)
    if dry:
        _say_jobs(jobs, before)
    _say_sum(jobs, before)
    if dry:
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TimeElapsedColumn(), TimeRemainingColumn())  # fmt: skip
    failed: list[Any] = []
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(f"{paper} {' '.join(tables)}", total=len(jobs))
        for done in run_all(jobs, at_once, data_root, results):
            progress.advance(task)
            if done.error:
                known = any(done.error == other.error for other in failed)
                failed.append(done)
                error = "the same error as above." if known else done.error
                said = f"{done.job.recipe} seed {done.job.seed}: {error}"
                progress.console.print(said, style="yellow", markup=False)
    for name in tables or (None,):
        table(paper, name, results=results)
    if failed:
        raise TorchcapsError(f"{len(failed)} of {len(jobs)} runs failed; run it again to go on.")


def _say_jobs(jobs: list[Any], before: dict[str, Any]) -> None:
    """Commands, and the seconds of each by its records."""
    for job in jobs:
        said = "never run"
        if took := before.get(job.recipe):
            said = f"{took.seconds:,.0f} s" + ("" if took.as_today else " in another setting")
        commands = filter(None, ("" if job.recorded else job.command, job.measuring))
        said = f"{' && '.join(commands)}  # {said}"
        console.print(said, highlight=False, soft_wrap=True, markup=False)


def _say_sum(jobs: list[Any], before: dict[str, Any]) -> None:
    """How many runs there are, and what such runs took before."""
    known = [before[job.recipe].seconds for job in jobs if job.recipe in before]
    more = f"; {len(jobs) - len(known)} were never run" if len(known) < len(jobs) else ""
    said = f"{len(jobs)} runs, {sum(known):,.0f} s for {len(known)} by earlier runs{more}."
    console.print(said, highlight=False)
