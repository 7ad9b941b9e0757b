"""tyro's parsing with errors of one or two lines, and the placeholders that help texts use."""

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

OneRun = Annotated[Path, Positional, arg(metavar="RUN")]
Runs = Annotated[tuple[Path, ...], Positional, arg(metavar="RUN", help_behavior_hint="")]
Folder = Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="")]
File = Annotated[Path, arg(metavar="FILE")]
MaybeFile = Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")]
Text = Annotated[str, arg(metavar="TEXT", help_behavior_hint="")]
RecipeName = Annotated[str, arg(metavar="RECIPE", help_behavior_hint="")]
RunId = Annotated[str, arg(metavar="ID", help_behavior_hint="")]
Seed = Annotated[int | None, arg(metavar="INT", help_behavior_hint="")]
Data = Annotated[str, arg(metavar="DATA", help_behavior_hint="")]

_FRAME = re.compile(r"^[│|+╭╰]|[│|+╮╯]$")


class UsageError(SystemExit):
    """Wrong words on the command line; its text was printed."""


def wrong(text: str, prog: str) -> UsageError:
    """Say what is wrong and where help is; the exit code is 2."""
    print(f"torchcaps: {text}", file=sys.stderr)
    print(f"See {prog} --help.", file=sys.stderr)
    return UsageError(2)


def parse(function: Callable[..., Any], words: Sequence[str], prog: str, **options: Any) -> Any:
    """Call `function` with its arguments read from `words`."""
    said = io.StringIO()
    bound: list[tuple[Any, Any]] = []

    @functools.wraps(function)
    def bind(*arguments: Any, **named: Any) -> None:
        bound.append((arguments, named))

    try:
        with contextlib.redirect_stderr(said):
            tyro.cli(bind, args=list(words), prog=prog, **options)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise wrong(_short(said.getvalue()), prog) from None
    # called out here, so that what the command itself says on stderr is heard
    arguments, named = bound[0]
    return function(*arguments, **named)


def _short(text: str) -> str:
    """The first paragraph inside tyro's frame, and the first option that it suggests.

    tyro has no other way to say what is wrong.
    """
    paragraphs: list[list[str]] = [[]]
    for line in text.splitlines()[1:]:
        inner = _FRAME.sub("", line).strip()
        if set(inner) <= {"─", "-"}:
            paragraphs.append([])
        else:
            paragraphs[-1].append(inner)
    filled = [p for p in paragraphs if p]
    said = " ".join(filled[0]).rstrip(".") if filled else "wrong words on the command line"
    if len(filled) > 1 and filled[1][0].startswith("Perhaps"):
        said += f". Did you mean {filled[1][1].split()[0]}?"
    return said
