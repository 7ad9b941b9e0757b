"""The table of all commands, and words to functions; tyro reads arguments from signatures."""

from collections.abc import Callable
from typing import Any

from torchcaps.cli import (
    data,
    evaluate,
    listing,
    paper,
    places,
    plot,
    predict,
    runs,
    sweep,
    train,
)
from torchcaps.cli.console import complain
from torchcaps.cli.parse import ParseExit, parse
from torchcaps.errors import nearest

COMMANDS: dict[str, Callable[..., Any]] = {
    "demo": train.demo,
    "train": train.train,
    "resume": train.resume,
    "sweep": sweep.sweep,
    "eval": evaluate.eval_,
    "predict": predict.predict,
    "embed": predict.embed,
    "export": predict.export,
    "explore": plot.explore,
    "report": plot.report,
    "plot": plot.plot,
    "list": listing.list_,
    "runs": runs.list_,
    "data": data.data,
    "paper": paper.table,
    "places": places.check,
}
HIDDEN: dict[str, Callable[..., Any]] = {
    "tour": listing.tour,
    "completion": listing.completion,
    "version": listing.version,
}
"""Commands that work and are not listed."""
GROUPS: dict[str, dict[str, Callable[..., Any]]] = {
    "runs": {"list": runs.list_, "clean": runs.clean},
    "paper": {
        "list": paper.list_,
        "run": paper.run,
        "table": paper.table,
        "record": paper.record,
        "amend": paper.amend,
        "benchmarks": paper.benchmarks,
    },
    "places": {"check": places.check},
}
SUMMARIES = {
    "runs": "List runs and free the disk space of finished ones",
    "places": "Check where runs can happen: this machine, SLURM, Ray",
    "paper": "Reproduce the papers: recipes, tables and recorded results",
}


def _summary(name: str, function: Callable[..., Any]) -> str:
    return SUMMARIES.get(name) or (function.__doc__ or "").split("\n")[0].rstrip(".")


def _table(commands: dict[str, Callable[..., Any]], names: dict[str, str]) -> list[str]:
    width = max(map(len, commands))
    return [f"  {n:{width}}  {names.get(n) or _summary('', f)}" for n, f in commands.items()]


def _help() -> str:
    names = {name: _summary(name, function) for name, function in COMMANDS.items()}
    return "\n".join([
        "torchcaps COMMAND [arguments]: capsule networks in PyTorch.", "",
        *_table(COMMANDS, names), "",
        "Options of every command: --help, --debug (full tracebacks). -V, --version: the version.",
        "New here? Run: torchcaps demo",
    ])  # fmt: skip


def _group_help(name: str) -> str:
    usage = (
        f"torchcaps {name} COMMAND [arguments]: {SUMMARIES[name][0].lower()}{SUMMARIES[name][1:]}"
    )
    return "\n".join([f"{usage}.", "", *_table(GROUPS[name], {})])


def run_command(words: list[str]) -> int:
    """Find the command and pass it its arguments."""
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    name, rest = words[0], words[1:]
    if name in ("-V", "--version"):
        from torchcaps import __version__

        print(f"torchcaps {__version__}")
        return 0
    function = {**COMMANDS, **HIDDEN}.get(name)
    if function is None:
        near = nearest(name, list(COMMANDS))
        complain(f"unknown command {name!r}. {near}")
        return 2
    prog = f"torchcaps {name}"
    if name in GROUPS:
        if (not rest and name != "runs") or (rest and rest[0] in ("-h", "--help", "help")):
            print(_group_help(name))
            return 0
        if rest and not rest[0].startswith("-"):
            group = GROUPS[name]
            if rest[0] not in group:
                near = nearest(rest[0], list(group))
                complain(f"unknown command '{name} {rest[0]}'. {near}")
                return 2
            function, prog, rest = group[rest[0]], f"{prog} {rest[0]}", rest[1:]
    try:
        if name in ("train", "resume", "sweep"):  # their options are the fields of a recipe
            function(rest)
        else:
            parse(function, rest, prog)
    except ParseExit:
        return 2
    except SystemExit as stop:  # --help
        return int(stop.code or 0)
    return 0
