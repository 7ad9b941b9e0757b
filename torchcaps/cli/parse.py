"""tyro's parsing with errors of one or two lines."""

import contextlib
import functools
import io
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import tyro

_FRAME = re.compile(r"^[│|+╭╰]|[│|+╮╯]$")


class UsageError(SystemExit):
    """Wrong words on the command line; its text was printed."""


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
        print(f"torchcaps: {_short(said.getvalue())}", file=sys.stderr)
        print(f"See {prog} --help.", file=sys.stderr)
        raise UsageError(2) from None
    # called out here, so that what the command itself says on stderr is heard
    arguments, named = bound[0]
    return function(*arguments, **named)


def _short(text: str) -> str:
    """The first paragraph inside tyro's frame, and the first option that it suggests."""
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
