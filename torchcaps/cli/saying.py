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


def say_beyond(run: Any) -> None:
    """Say by which command a recorded run gets what its tables show beyond its own numbers."""
    from torchcaps.experiments.reproduce import measure_command, shown_beyond

    if more := shown_beyond(run.recipe()):
        said = f"Its tables show more: {measure_command(run.folder, more)}"
        console.print(said, highlight=False, soft_wrap=True, markup=False)
