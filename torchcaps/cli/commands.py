"""The commands. Each is a function; tyro reads its arguments and its help from the signature."""

import json as json_module
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import torch.distributed as dist
import tyro
from rich.console import Console
from rich.table import Table as RichTable
from tyro.conf import Positional

from torchcaps import __version__
from torchcaps.cli.parse import UsageError, parse
from torchcaps.data.registry import entries
from torchcaps.errors import TorchcapsError, nearest
from torchcaps.experiments import cells, get_recipe, get_table, recipes, tables
from torchcaps.models.registry import models
from torchcaps.train.recipe import Recipe
from torchcaps.train.run import Run

console = Console()


def _print_json(value: Any) -> None:
    print(json_module.dumps(value, indent=2))


def list_(
    kind: Positional[Literal["all", "models", "data", "recipes"]] = "all", /, json: bool = False
) -> None:
    """Models, data sets and recipes, a line each.

    Examples: torchcaps list · torchcaps list recipes · torchcaps list --json
    """
    found = {
        "models": {m.name: m.summary for m in models()},
        "data": {d.name: d.summary for d in entries()},
        "recipes": {n: (f.__doc__ or "").strip().split("\n")[0] for n, f in recipes().items()},
    }
    chosen = {k: v for k, v in found.items() if kind in ("all", k)}
    if json:
        return _print_json(chosen)
    for title, lines in chosen.items():
        table = RichTable(title=title, title_justify="left", box=None, show_header=False)
        for name, summary in lines.items():
            table.add_row(f"[bold]{name}[/bold]", summary)
        console.print(table)


def train(
    recipe: Annotated[Recipe, tyro.conf.arg(name="")], out: Path | None = None, json: bool = False
) -> None:
    """Train a recipe; every field can be replaced. Ctrl-C leaves a run that `resume` goes on with.

    Args:
        recipe: The run.
        out: Folder of the run; default: runs/<recipe>-s<seed>.
        json: Print the record as JSON at the end.
    """
    from torchcaps.train.loop import start

    run = start(recipe, out, Console(stderr=True) if json else console)
    _show_record(run, json)


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
        return _print_json({"run": str(run.folder), **record})
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
        return _print_json(result)
    numbers = "  ".join(f"{k} {v:.4f}" for k, v in result["numbers"].items())
    console.print(f"{result['data']} {split}, {result['n']:,} images: {numbers}")


def table(
    paper: Positional[str],
    name: Positional[str | None] = None,
    /,
    results: Path = Path("results"),
    json: bool = False,
) -> None:
    """A paper's table: our mean ± std (runs), best, the paper's value, the difference.

    Examples: torchcaps table robustness · torchcaps table robustness table1 --json

    Args:
        paper: Short name of the paper.
        name: One of its tables; default: all.
        results: Folder of the recorded results.
        json: Print JSON.
    """
    chosen = [get_table(paper, name)] if name else tables(paper)
    if json:
        return _print_json([cell for t in chosen for cell in cells(t, results)])
    for t in chosen:
        notes = "; ".join(f"{n}: {c.note}" for n, c in t.columns.items() if c.note)
        shown = RichTable("row", title=f"{t.paper} {t.name}: {t.title}", caption=notes or None)
        for column in t.columns:
            shown.add_column(column)
            shown.add_column("paper")
            shown.add_column("diff")
        rows: dict[tuple[str, str], list[str]] = {}
        for c in cells(t, results):
            line = rows.setdefault((c["row"], c["protocol"]), [])
            line += [
                _cell(c),
                f"{c['paper_value']}" if c["paper_value"] is not None else "",
                _difference(c),
            ]
        for (row, protocol), line in rows.items():
            shown.add_row(row if protocol == "ours" else f"{row} [{protocol}]", *line)
        console.print(shown)


def _cell(c: dict[str, Any]) -> str:
    if not c["n"]:
        return "–"
    spread = f" ± {c['std']:.2f}" if c["std"] is not None else ""
    return f"{c['mean']:.2f}{spread} ({c['n']}), best {c['best']:.2f}"


def _difference(c: dict[str, Any]) -> str:
    known = c["n"] and c["paper_value"] is not None
    return f"{c['mean'] - c['paper_value']:+.2f}" if known else ""


def report(runs: Positional[tuple[Path, ...]], /, out: Path | None = None) -> None:
    """One HTML file about one run or several side by side, with every figure in it.

    Example: torchcaps report runs/demo/capsnet runs/demo/convnet-avg --out report.html
    """
    from torchcaps.explorer import write_report

    if not runs:
        raise TorchcapsError("Name at least one run: torchcaps report runs/demo/capsnet.")
    console.print(f"wrote {write_report(list(runs), out)}")


def tour(
    model: Positional[str],
    data: Positional[str] = "digits",
    /,
    data_root: Path | None = None,
    json: bool = False,
) -> None:
    """Push one image through a model and print each step: file and line, what it is, its shape.

    Example: torchcaps tour capsnet digits
    """
    from torchcaps.analysis.tour import tour as walk
    from torchcaps.data import load as load_data
    from torchcaps.models import create_model

    loaded = load_data(data, data_root)
    channels, size, _ = loaded.image_shape
    made = create_model(
        model, in_channels=channels, image_size=size, num_classes=loaded.num_classes
    )
    steps = walk(made, loaded)
    if json:
        return _print_json([asdict(s) for s in steps])
    shown = RichTable(box=None)
    shown.add_column("where", no_wrap=True)
    shown.add_column("what", ratio=1)
    shown.add_column("shape", no_wrap=True)
    shown.add_column("letters", no_wrap=True)
    for s in steps:
        shown.add_row(s.where, s.what, str(list(s.shape)), s.letters)
    console.print(shown)


def data(
    action: Positional[Literal["get", "check", "show"]],
    name: Positional[str],
    /,
    data_root: Path | None = None,
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Fetch a data set, check its files, or draw a contact sheet of it.

    Examples: torchcaps data show digits · torchcaps data get mnist · torchcaps data check cifar10

    Args:
        action: get: download what is missing; check: read it all and verify; show: draw a sheet.
        name: A data set, from `torchcaps list data`.
        data_root: Folder of the data sets; default: the platform's cache folder.
        out: The PNG that `show` writes; default: <name>.png.
        json: Print JSON.
    """
    from torchcaps.data import load as load_data

    loaded = load_data(name, data_root)
    facts: dict[str, Any] = {"name": loaded.name}
    facts |= {"train": len(loaded.train), "val": len(loaded.val), "test": len(loaded.test)}
    facts |= {"image": list(loaded.image_shape), "classes": loaded.num_classes}
    facts |= {"note": loaded.note}
    if action == "show":
        from torchcaps.analysis.contact import contact_sheet

        path = out or Path(name.replace("/", "-").replace(":", "-").replace(",", "-") + ".png")
        contact_sheet(loaded).savefig(path, dpi=140)
        facts["sheet"] = str(path)
    if json:
        return _print_json(facts)
    console.print("  ".join(f"{k} {v}" for k, v in facts.items() if v != ""))


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


def version(json: bool = False) -> None:
    """Versions of torchcaps and of what it stands on."""
    from torchcaps.train.record import commit, versions

    found = {"torchcaps": __version__, "commit": commit(), **versions()}
    if json:
        return _print_json(found)
    console.print("  ".join(f"{k} {v}" for k, v in found.items()))


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
    "table": table,
    "report": report,
    "tour": tour,
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


def _train(words: list[str]) -> int:
    """`train RECIPE` first, so that the fields shown and read are that recipe's."""
    if not words or words[0].startswith("-"):
        parse(train_help, words or ["--help"], "torchcaps train")
        return 0
    chosen = get_recipe(words[0])
    known = ["--data.root" if w == "--data-root" else w for w in words[1:]]

    def run(
        recipe: Annotated[Recipe, tyro.conf.arg(name="")] = chosen,
        out: Path | None = None,
        json: bool = False,
    ) -> None:
        train(recipe, out, json)

    run.__doc__ = train.__doc__
    parse(run, known, f"torchcaps train {words[0]}")
    return 0
