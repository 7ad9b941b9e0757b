"""What every command shares: where it prints, and where results lie."""

import json
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from tyro.conf import Positional, arg

console = Console()
RESULTS = Path("results")
Paper = Annotated[str, Positional, arg(metavar="PAPER")]


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))
