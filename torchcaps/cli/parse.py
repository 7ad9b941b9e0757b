"""tyro's parsing with errors of one or two lines, and the placeholders of help texts."""

import contextlib
import functools
import io
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import Positional, arg

from torchcaps.cli.console import complain
from torchcaps.errors import UsageError

Runs = Annotated[tuple[Path, ...], Positional, arg(metavar="RUN", help_behavior_hint="")]
Folder = Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="")]
File = Annotated[Path, arg(metavar="FILE")]
MaybeFile = Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")]
Text = Annotated[str, arg(metavar="TEXT", help_behavior_hint="")]
Data = Annotated[str, arg(metavar="DATA", help_behavior_hint="")]
On = Annotated[str, arg(metavar="PLACE", help_behavior_hint="")]
Env = Annotated[tuple[str, ...], arg(metavar="NAME", help_behavior_hint="")]
AtOnce = Annotated[int, arg(metavar="INT", help_behavior_hint="")]
Plugins = Annotated[tuple[str, ...], arg(metavar="FILE|MODULE", help_behavior_hint="")]

_FRAME = re.compile(r"^[│|+╭╰]|[│|+╮╯]$")


class ParseExit(SystemExit):
    """Wrong usage; its message was printed."""


def wrong(text: str, prog: str) -> ParseExit:
    """Print what is wrong and where the help is; the exit code is 2."""
    complain(text)
    print(f"See {prog} --help.", file=sys.stderr)
    return ParseExit(2)


def parse(function: Callable[..., Any], words: Sequence[str], prog: str, **options: Any) -> Any:
    """Call `function` with its arguments read from `words`."""
    stderr = io.StringIO()
    bound: list[tuple[Any, Any]] = []

    @functools.wraps(function)
    def bind(*arguments: Any, **named: Any) -> None:
        bound.append((arguments, named))

    try:
        with contextlib.redirect_stderr(stderr):
            tyro.cli(bind, args=list(words), prog=prog, **options)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise wrong(_short(stderr.getvalue()), prog) from None
    # called out here, so that what the command itself prints to stderr is shown
    arguments, named = bound[0]
    return function(*arguments, **named)


def _short(text: str) -> str:
    """The first paragraph inside tyro's frame, and the first option that it suggests.

    tyro has no other interface to its error messages.
    """
    paragraphs: list[list[str]] = [[]]
    for line in text.splitlines()[1:]:
        inner = _FRAME.sub("", line).strip()
        if set(inner) <= {"─", "-"}:
            paragraphs.append([])
        else:
            paragraphs[-1].append(inner)
    filled = [p for p in paragraphs if p]
    message = " ".join(filled[0]).rstrip(".") if filled else "wrong usage"
    if len(filled) > 1 and filled[1][0].startswith("Perhaps"):
        message += f". Did you mean {filled[1][1].split()[0]}?"
    return message


def without(words: list[str], options: tuple[str, ...]) -> tuple[list[str], dict[str, list[str]]]:
    """Words without some options, and the values of these options."""
    rest: list[str] = []
    values: dict[str, list[str]] = {}
    pending = list(words)
    while pending:
        word = pending.pop(0)
        option, equals, value = word.partition("=")
        if option not in options:
            rest.append(word)
        elif not equals and (not pending or pending[0].startswith("-")):
            raise UsageError(f"{option} needs a value.")
        else:
            values.setdefault(option, []).append(value if equals else pending.pop(0))
    return rest, values


def load_plugins(sources: Sequence[str]) -> None:
    from torchcaps import plugins

    for source in sources:
        plugins.load(source)
