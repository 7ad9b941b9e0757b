"""The table of all commands, and words to functions; tyro reads arguments from signatures."""

import sys
from collections.abc import Callable
from typing import Any

from torchcaps.cli import exploring, judging, recording, showing, training, using
from torchcaps.cli.parse import UsageError, parse
from torchcaps.cli.tables import benchmarks, table
from torchcaps.errors import nearest

COMMANDS: dict[str, Callable[..., Any]] = {
    "demo": training.demo,
    "list": showing.list_,
    "train": training.train,
    "resume": training.resume,
    "eval": judging.eval_,
    "measure": judging.measure,
    "predict": using.predict,
    "embed": using.embed,
    "export": using.export,
    "explore": exploring.explore,
    "report": showing.report,
    "draw": showing.draw,
    "tour": showing.tour,
    "traverse": showing.traverse,
    "sample": showing.sample,
    "curves": showing.curves,
    "data": showing.data,
    "table": table,
    "benchmarks": benchmarks,
    "reproduce": recording.reproduce,
    "record": recording.record,
    "supersede": recording.supersede,
    "rename": recording.rename,
    "move": recording.move,
    "adopt": recording.adopt,
    "version": showing.version,
    "completion": showing.completion,
}


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [
        f"  {name:{width}}  {(function.__doc__ or '').split('. ')[0].splitlines()[0].rstrip('.')}"
        for name, function in COMMANDS.items()
    ]
    return "\n".join([
        "torchcaps COMMAND [words]: capsule networks in PyTorch.", "",
        *lines, "",
        "torchcaps COMMAND --help tells more. A newcomer's first word: torchcaps demo",
    ])  # fmt: skip


def run_command(words: list[str]) -> int:
    """Find the command and hand it its words."""
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    name, rest = words[0], words[1:]
    if name == "--version":
        from torchcaps import __version__

        print(f"torchcaps {__version__}")
        return 0
    if name not in COMMANDS:
        print(f"torchcaps: no command {name!r}. {nearest(name, list(COMMANDS))}", file=sys.stderr)
        return 2
    try:
        if name in ("train", "resume"):  # their options are the fields of a recipe
            COMMANDS[name](rest)
        else:
            parse(COMMANDS[name], rest, f"torchcaps {name}")
    except UsageError:
        return 2
    except SystemExit as stop:  # --help
        return int(stop.code or 0)
    return 0
