"""Text of unknown origin, such as names of classes and folders, made harmless where it is shown:
in a terminal, in a CSV file, and in HTML or Markdown.
"""

import html
import re
from collections.abc import Iterable
from typing import Any

from rich import console as rich_console
from rich.segment import Segment

_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but line ends and tabs
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # line separators, changes of direction
    "\ud800-\udfff]"  # bytes of a file's name that are not UTF-8
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Characters that start a formula in a spreadsheet."""


def for_terminal(text: str) -> str:
    """The text with control characters as \\x1b: it cannot move the cursor or hide words."""
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)


def for_csv(text: str) -> str:
    """The text as a cell that no spreadsheet computes."""
    return for_terminal(f"'{text}" if text.startswith(_FORMULA) else text)


def for_html(text: str) -> str:
    """The text inside HTML, or in a cell of a Markdown table."""
    return html.escape(for_terminal(text)).replace("|", "&#124;").replace("\n", " ")


class Console(rich_console.Console):
    """A console that prints text as it is: no markup in brackets, no control characters."""

    def __init__(self, **options: Any):
        super().__init__(**{"markup": False, "emoji": False, **options})

    def render(self, *arguments: Any, **options: Any) -> Iterable[Segment]:
        for segment in super().render(*arguments, **options):
            text = segment.text if segment.control else for_terminal(segment.text)
            yield segment if text == segment.text else Segment(text, segment.style)

    def on_broken_pipe(self) -> None:
        """Let the command end well, as after `| head`; rich would exit with 1."""
        raise BrokenPipeError
