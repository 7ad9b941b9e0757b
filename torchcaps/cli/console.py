"""The console of every command."""

import json
import sys
from typing import Any

from torchcaps.escape import Console, for_terminal

console = Console()


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def say(text: str, style: str | None = None) -> None:
    """A line as it is: never wrapped."""
    console.print(text, soft_wrap=True, highlight=False, style=style)


def complain(text: str) -> None:
    """A message to stderr."""
    print(f"torchcaps: {for_terminal(text)}", file=sys.stderr)
