"""Commands that train, evaluate and record. Heavy imports stand inside, so that help is quick."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.console import Console
from tyro.conf import Positional, arg

from torchcaps.cli.parse import (
    Data,
    Folder,
    OneRun,
    RecipeName,
    RunId,
    Runs,
    Seed,
    Text,
    parse,
    wrong,
)
from torchcaps.errors import TorchcapsError, nearest

console = Console()
RESULTS = Path("results")
Paper = Annotated[str, Positional, arg(metavar="PAPER")]
Tables = Annotated[tuple[str, ...], Positional, arg(metavar="TABLE", help_behavior_hint="")]

TRAIN = """\
torchcaps train RECIPE [--field value …]

  torchcaps train demo/capsnet --epochs 3               a small CapsNet on the embedded digits
  torchcaps train demo/capsnet --data folder:~/photos,size=64 --measures       your own images
  torchcaps train mcae/pretrain --data folder:~/photos,size=32                 without labels
  torchcaps train RECIPE --help                         the fields of a recipe, each replaceable
  torchcaps list recipes                                the recipes

A run stands in runs/; Ctrl-C leaves one that `torchcaps resume` goes on with."""

SHORT = {"--data-root": "--data.root", "--data": "--data.name", "--from": "--start-from"}
"""Options of `train` that need no group."""


def train(words: list[str]) -> None:
    """Train a recipe; every field of it can be replaced."""
    if not words:
        raise wrong("name a recipe: torchcaps train demo/capsnet.", "torchcaps train")
    if words[0] in ("-h", "--help"):
        print(TRAIN)
        return
    if words[0].startswith("-"):
        raise wrong("the recipe comes first: torchcaps train RECIPE …", "torchcaps train")
    import tyro

    from torchcaps.experiments import recipes
    from torchcaps.train.recipe import Recipe

    if words[0] not in recipes():
        near = nearest(words[0], list(recipes()), most=0) or "See torchcaps list recipes."
        raise wrong(f"there is no recipe {words[0]!r}. {near}", "torchcaps train")
    known = [re.sub(r"^--[a-z-]+(?==|$)", lambda m: SHORT.get(m[0], m[0]), w) for w in words[1:]]
    chosen, rest = _chosen(words[0], known)

    def run(
        recipe: Annotated[Recipe, tyro.conf.arg(name="")] = chosen,
        out: Folder = None,
        json: bool = False,
    ) -> None:
        """Train a recipe; every field can be replaced. --task NAME and --model NAME exchange a
        whole group. Ctrl-C leaves a run that `resume` goes on with.

        Args:
            recipe: The run.
            out: The folder of the run; default: runs/<recipe>-s<seed>.
            json: Whether the record is printed as JSON at the end.
        """
        from torchcaps.experiments.chain import pretrained
        from torchcaps.train.loop import start

        to = Console(stderr=True) if json else console
        results = RESULTS if recipe.record else None
        show_record(start(pretrained(recipe, to, results), out, to), json)

    parse(run, rest, f"torchcaps train {words[0]}")


def _chosen(name: str, words: list[str]) -> tuple[Any, list[str]]:
    """The recipe with the task and the model that the words name, and the other words."""
    from dataclasses import replace

    from torchcaps.experiments import get_recipe
    from torchcaps.models.registry import model_config
    from torchcaps.train.tasks import task_config

    text = " ".join(words)
    recipe = get_recipe(name, "paper" if re.search(r"--protocol[= ]paper( |$)", text) else "ours")
    rest: list[str] = []
    pending = list(words)
    while pending:
        word = pending.pop(0)
        option, equals, value = word.partition("=")
        if option not in ("--task", "--model"):
            rest.append(word)
            continue
        if not equals:
            value = pending.pop(0) if pending else ""
        if option == "--task":
            recipe = replace(recipe, task=task_config(value)())
        else:
            recipe = replace(recipe, model=model_config(value))
    return recipe, rest


def resume(run: OneRun, /, json: bool = False) -> None:
    """Go on with a run that was stopped or killed; it ends with the bits of one that never was.

    Example: torchcaps resume runs/demo-capsnet-s0

    Args:
        run: The folder of the run.
        json: Whether the record is printed as JSON at the end.
    """
    from torchcaps.train.loop import resume as go_on

    show_record(go_on(run, Console(stderr=True) if json else console), json)


def show_record(run: Any, json: bool) -> None:
    import torch.distributed as dist
    from rich.table import Table

    if dist.is_initialized() and dist.get_rank():  # of many processes, one speaks
        return
    record = run.record()
    if json:
        return print_json({"folder": str(run.folder), **record})
    table = Table("data", "split", "metric", "value")
    for r in record["results"]:
        table.add_row(r["data"], r["split"], r["metric"], f"{r['value']:.4f}")
    console.print(table)
    facts = f"{record['parameters']:,} parameters, {record['seconds']:.0f} s, run in"
    console.print(facts, str(run.folder))


def print_json(value: Any) -> None:
    import json

    print(json.dumps(value, indent=2))


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

    for folder in runs:
        console.print(f"{folder}: {append_record(Run.open(folder).record(), results, note)}")


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


def _amend(paper: str, kind: str, match: Any, facts: dict[str, Any], results: Path) -> None:
    from torchcaps.train.record import best_device, environment
    from torchcaps.train.results import amend, results_file

    match = {name: value for name, value in match.items() if value not in ("", None)}
    if not match:
        raise TorchcapsError("Say which lines: --recipe, --run, --seed or --data.")
    path = results_file(paper, results)
    where = environment(best_device())
    console.print(f"{amend(path, kind, match, facts, where)} lines of {path} are amended.")


def eval_(
    run: OneRun,
    /,
    data: Data = "",
    split: Literal["test", "val", "train"] = "test",
    data_root: Folder = None,
    json: bool = False,
) -> None:
    """Evaluate the chosen model of a run on any data set of its image size.

    Example: torchcaps eval runs/demo-capsnet-s0 --data rotated:digits,degrees=30

    Args:
        run: The folder of a finished run.
        data: A data set; default: the run's own.
        split: The split that is evaluated.
        data_root: The folder of the data sets.
        json: Whether the numbers are printed as JSON.
    """
    from torchcaps.train.evaluate import evaluate_run

    result = evaluate_run(run, data, split, data_root)
    if json:
        return print_json(result)
    numbers = "  ".join(f"{k} {v:.4f}" for k, v in result["numbers"].items())
    console.print(f"{result['data']} {split}, {result['n']:,} images: {numbers}")


def measure(
    run: OneRun,
    measures: Annotated[tuple[str, ...], Positional, arg(metavar="MEASURE")] = ("compactness",),
    /,
    data_root: Folder = None,
    record: bool = False,
    json: bool = False,
) -> None:
    """Measure more of a finished run: what `torchcaps list measures` shows, on any data.

    Some need pip install 'torchcaps[analysis]'.

    Examples: torchcaps measure runs/demo-capsnet-s0 calibration linear:rotated:digits,degrees=30

    Args:
        run: The folder of a finished run.
        measures: Measures by name, each with a data set and options of its own where it needs them.
        data_root: The folder of the data sets.
        record: Whether the numbers are appended to results/<paper>.jsonl.
        json: Whether the numbers are printed as JSON.
    """
    from torchcaps.train.evaluate import measure_run
    from torchcaps.train.progress import MeasureProgress
    from torchcaps.train.results import append_record

    lines, said = [], []
    with MeasureProgress(None if json else console) as told:
        for taken in measure_run(run, list(measures), data_root, told=told):
            lines += taken["results"]
            if record:  # at once: what is costly is not lost with what comes after it
                said.append(append_record(taken, RESULTS))
            for r in taken["results"] if not json else ():
                console.print(f"{r['metric']:28} {r['value']:.4f}  {r['data']}")
    for sentence in dict.fromkeys(said):
        console.print(sentence)
    if json:
        print_json(lines)


def reproduce(
    paper: Paper,
    tables: Annotated[
        tuple[str, ...], Positional, arg(metavar="TABLE", help_behavior_hint="")
    ] = (),
    /,
    seeds: int = 3,
    at_once: int = 1,
    data_root: Annotated[str, arg(metavar="FOLDER", help_behavior_hint="")] = "",
    results: Path = RESULTS,
    dry: bool = False,
    protocol: str = "ours",
) -> None:
    """Run what results/ lacks of a paper's tables, then print them beside the paper's values.

    Runs that were stopped go on where they were; one that fails is named, for the next time.

    Example: torchcaps reproduce robustness table1 --seeds 5 --at-once 4

    Args:
        paper: The short name of the paper.
        tables: Some of its tables; default: all.
        seeds: How many runs every row should have.
        at_once: How many runs go side by side, on one GPU if they fit.
        data_root: The folder of the data sets.
        results: The folder of the recorded results.
        dry: Whether it only says what would be run.
        protocol: `paper`: as the paper did it where ours differs, in rows marked so.
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
    from torchcaps.experiments.reproduce import missing
    from torchcaps.experiments.reproduce import reproduce as run_all

    jobs = missing(paper, tables, seeds, results, protocol)
    if dry:
        for job in jobs:
            console.print(job.command, highlight=False)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TimeElapsedColumn(), TimeRemainingColumn())  # fmt: skip
    failed = []
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(f"{paper} {' '.join(tables)}", total=len(jobs))
        for done in run_all(jobs, at_once, data_root, results):
            progress.advance(task)
            if done.error:
                failed.append(done)
                said = f"{done.job.recipe} seed {done.job.seed}: {done.error}"
                progress.console.print(said, style="yellow", markup=False)
    for name in tables or (None,):
        table(paper, name, results=results)
    if failed:
        raise TorchcapsError(f"{len(failed)} of {len(jobs)} runs failed; run it again to go on.")


def demo(out: Folder = None) -> None:
    """Train a small CapsNet and a small ConvNet-Avg on embedded digits; a report on both.

    Args:
        out: The folder of the two runs; default: runs/demo, numbered if there is one.
    """
    from rich.table import Table

    from torchcaps.experiments.demo import CLEAN, TRANSFORMED, run_demo
    from torchcaps.explorer import write_report

    folder, number = out or Path("runs/demo"), 2
    while folder.exists():
        folder, number = folder.with_name(f"{(out or Path('demo')).name}-{number}"), number + 1
    runs = run_demo(folder, console)
    title = "Test accuracy on 500 digits"
    shown = Table("model", "parameters", "clean, %", "affine, %", title=title)
    for run in runs:
        record = run.record()
        accuracy = [r for r in record["results"] if r["metric"] == "accuracy"]
        values = {r["data"]: r["value"] for r in accuracy if r["split"] == "test"}
        shown.add_row(
            record["recipe"]["row"], f"{record['parameters']:,}",
            f"{100 * values[CLEAN]:.1f}", f"{100 * values[TRANSFORMED]:.1f}",
        )  # fmt: skip
    console.print(shown)
    console.print(f"report: {write_report([r.folder for r in runs], folder / 'report.html')}")
