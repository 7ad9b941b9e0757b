"""Where every command prints."""

import json
from typing import Any

from rich.console import Console

console = Console()


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def say(text: str, style: str | None = None) -> None:
    """A line as it is: never wrapped or read as markup."""
    console.print(text, soft_wrap=True, highlight=False, markup=False, style=style)
