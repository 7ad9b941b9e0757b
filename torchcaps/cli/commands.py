"""Commands that run something, and the table of all commands.

Each is a function; tyro reads its arguments and its help from the signature.
"""

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import torch.distributed as dist
import tyro
from rich.console import Console
from rich.table import Table as RichTable
from tyro.conf import Positional

from torchcaps.cli.parse import UsageError, parse
from torchcaps.cli.show import (
    console,
    curves,
    data,
    list_,
    print_json,
    report,
    tour,
    traverse,
    version,
)
from torchcaps.cli.tables import table
from torchcaps.errors import TorchcapsError, nearest
from torchcaps.experiments import get_recipe, recipes
from torchcaps.train.recipe import Recipe
from torchcaps.train.run import Run


def train(
    recipe: Annotated[Recipe, tyro.conf.arg(name="")], out: Path | None = None, json: bool = False
) -> None:
    """Train a recipe; every field can be replaced. Ctrl-C leaves a run that `resume` goes on with.

    Args:
        recipe: The run.
        out: Folder of the run; default: runs/<recipe>-s<seed>.
        json: Print the record as JSON at the end.
    """
    from torchcaps.experiments.chain import pretrained
    from torchcaps.train.loop import start

    to = Console(stderr=True) if json else console
    results = Path("results") if recipe.record else None
    _show_record(start(pretrained(recipe, to, results), out, to), json)


def train_help(recipe: Positional[Literal[tuple(recipes())]], /) -> None:  # pyright: ignore
    """Train a recipe; `train RECIPE --help` shows its fields, all of which can be replaced.

    Example: torchcaps train demo/capsnet --epochs 3 --model.routing none --seed 1

    Args:
        recipe: Its name, from `torchcaps list recipes`.
    """


def resume(run: Positional[Path], /, json: bool = False) -> None:
    """Go on with a run that was stopped or killed; it ends with the bits of one that never was.

    Example: torchcaps resume runs/demo-capsnet-s0
    """
    from torchcaps.train.loop import resume as go_on

    _show_record(go_on(run, Console(stderr=True) if json else console), json)


def record(runs: Positional[tuple[Path, ...]], /, results: Path = Path("results")) -> None:
    """Append finished runs to results/<paper>.jsonl, from which the tables are made.

    For runs that were trained elsewhere, or without --record; a run is never recorded twice.

    Example: torchcaps record runs/robustness-table1-capsnet-s0

    Args:
        runs: Folders of finished runs.
        results: Folder of the recorded results.
    """
    from torchcaps.train.record import append_results

    for folder in runs:
        console.print(f"{folder}: {append_results(Run(folder).record(), results)}")


def _show_record(run: Run, json: bool) -> None:
    if dist.is_initialized() and dist.get_rank():  # of many processes, one speaks
        return
    record = run.record()
    if json:
        return print_json({"run": str(run.folder), **record})
    table = RichTable("data", "split", "metric", "value")
    for r in record["results"]:
        table.add_row(r["data"], r["split"], r["metric"], f"{r['value']:.4f}")
    console.print(table)
    facts = f"{record['parameters']:,} parameters, {record['seconds']:.0f} s, run in"
    console.print(facts, str(run.folder))


def eval_(
    run: Positional[Path],
    /,
    data: str = "",
    split: Literal["test", "val", "train"] = "test",
    data_root: Path | None = None,
    json: bool = False,
) -> None:
    """Evaluate the chosen model of a run on any data set of its image size.

    Example: torchcaps eval runs/demo-capsnet-s0 --data rotated:digits,degrees=30

    Args:
        run: Folder of a finished run.
        data: A data set; default: the run's own.
        split: Which of its splits.
        data_root: Folder of the data sets.
        json: Print JSON.
    """
    from torchcaps.train.evaluate import evaluate_run

    result = evaluate_run(run, data or None, split, data_root)
    if json:
        return print_json(result)
    numbers = "  ".join(f"{k} {v:.4f}" for k, v in result["numbers"].items())
    console.print(f"{result['data']} {split}, {result['n']:,} images: {numbers}")


def measure(
    run: Positional[Path],
    kinds: Positional[tuple[str, ...]] = ("compactness",),
    /,
    data_root: Path | None = None,
    record: bool = False,
    json: bool = False,
) -> None:
    """Numbers beyond accuracy: compactness, calibration, adversarial, outliers, mirrored.

    Adversarial, calibration and outliers need pip install 'torchcaps[analysis]'.

    Example: torchcaps measure runs/robustness-table5-capsnet-s0 compactness --record

    Args:
        run: Folder of a finished run.
        kinds: Which of them.
        data_root: Folder of the data sets.
        record: Append the scores to results/<paper>.jsonl.
        json: Print JSON.
    """
    from torchcaps.analysis.measure import measure as take
    from torchcaps.analysis.measure import record_measured

    found = take(run, list(kinds), data_root)
    if record:
        console.print(record_measured(run, found, Path("results")))
    if json:
        return print_json(found)
    for r in found:
        console.print(f"{r['metric']:28} {r['value']:.4f}")


def reproduce(
    paper: Positional[str],
    tables: Positional[tuple[str, ...]] = (),
    /,
    seeds: int = 3,
    at_once: int = 1,
    data_root: str = "",
    results: Path = Path("results"),
    dry: bool = False,
    protocol: str = "ours",
) -> None:
    """Run what results/ lacks of a paper's tables, then print them beside the paper's values.

    Runs that were stopped go on where they were; one that fails is named, for the next time.

    Example: torchcaps reproduce robustness table1 --seeds 5 --at-once 4

    Args:
        paper: Short name of the paper.
        tables: Some of its tables; default: all.
        seeds: Runs of every row.
        at_once: Runs side by side, on one GPU if they fit.
        data_root: Folder of the data sets.
        results: Folder of the recorded results.
        dry: Only say what would be run.
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

    from torchcaps.experiments.reproduce import missing
    from torchcaps.experiments.reproduce import reproduce as run_all

    jobs = missing(paper, tables, seeds, results, protocol)
    if dry:
        for job in jobs:
            console.print(" ".join(job.command), highlight=False)
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
        table(paper, name, results)
    if failed:
        raise TorchcapsError(f"{len(failed)} of {len(jobs)} runs failed; run it again to go on.")


def demo(out: Path | None = None) -> None:
    """Train a small CapsNet and a small ConvNet-Avg on embedded digits; a report on both."""
    from torchcaps.experiments.demo import CLEAN, TRANSFORMED, run_demo
    from torchcaps.explorer import write_report

    folder, number = out or Path("runs/demo"), 2
    while folder.exists():
        folder, number = folder.with_name(f"{(out or Path('demo')).name}-{number}"), number + 1
    runs = run_demo(folder, console)
    shown = RichTable(
        "model", "parameters", "clean, %", "affine, %", title="Test accuracy on 500 digits"
    )
    for run in runs:
        record = run.record()
        values = {
            r["data"]: r["value"]
            for r in record["results"]
            if (r["split"], r["metric"]) == ("test", "accuracy")
        }
        shown.add_row(
            record["recipe"]["row"], f"{record['parameters']:,}",
            f"{100 * values[CLEAN]:.1f}", f"{100 * values[TRANSFORMED]:.1f}",
        )  # fmt: skip
    console.print(shown)
    console.print(f"report: {write_report([r.folder for r in runs], folder / 'report.html')}")


def completion(shell: Positional[Literal["bash", "zsh"]], /) -> None:
    """A script for ~/.bashrc or ~/.zshrc that completes commands, recipes and their fields."""
    from torchcaps.cli.completion import completion_script

    print(completion_script(shell, list(COMMANDS)))


COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo,
    "list": list_,
    "train": train,
    "resume": resume,
    "record": record,
    "eval": eval_,
    "measure": measure,
    "reproduce": reproduce,
    "table": table,
    "report": report,
    "tour": tour,
    "traverse": traverse,
    "curves": curves,
    "data": data,
    "version": version,
    "completion": completion,
}


def _shown() -> dict[str, Callable[..., None]]:
    return {**COMMANDS, "train": train_help}


def run_command(words: list[str]) -> int:
    """Find the command and hand it its words."""
    try:
        if not words or words[0] in ("-h", "--help"):
            description = "Capsule networks in PyTorch. A newcomer's first word: torchcaps demo"
            tyro.extras.subcommand_cli_from_dict(
                _shown(), prog="torchcaps", description=description, args=["--help"]
            )
        name, rest = words[0], words[1:]
        if name == "--version":
            name = "version"
        if name not in COMMANDS:
            print(
                f"torchcaps: no command {name!r}. {nearest(name, list(COMMANDS))}", file=sys.stderr
            )
            return 2
        if name == "train":
            return _train(rest)
        parse(COMMANDS[name], rest, f"torchcaps {name}")
    except UsageError:
        return 2
    except SystemExit as stop:  # --help
        return int(stop.code or 0)
    return 0


def marked(recipe: Recipe, original: Recipe) -> Recipe:
    """A paper's recipe with other fields than its own is no run of that paper's row: say so."""
    free = {"seed", "hardware", "checkpoint_seconds", "tensorboard", "record"}
    same = {name: getattr(recipe, name) for name in free}
    same["data"] = replace(original.data, root=recipe.data.root)
    named = recipe.protocol == original.protocol
    if recipe.paper and named and replace(original, **same) != recipe:
        return replace(recipe, protocol="modified")
    return recipe


def _train(words: list[str]) -> int:
    """`train RECIPE` first, so that the fields shown and read are that recipe's."""
    if not words or words[0].startswith("-"):
        parse(train_help, words or ["--help"], "torchcaps train")
        return 0
    short = {"--data-root": "--data.root", "--data": "--data.name", "--from": "--start-from"}
    known = [re.sub(r"^--[a-z-]+(?==|$)", lambda m: short.get(m[0], m[0]), w) for w in words[1:]]
    printed = re.search(r"--protocol[= ]paper( |$)", " ".join(known))
    chosen = get_recipe(words[0], "paper" if printed else "ours")

    def run(
        recipe: Annotated[Recipe, tyro.conf.arg(name="")] = chosen,
        out: Path | None = None,
        json: bool = False,
    ) -> None:
        train(marked(recipe, chosen), out, json)

    run.__doc__ = train.__doc__
    parse(run, known, f"torchcaps train {words[0]}")
    return 0
