"""Functions that jobs of the tests call."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from torchcaps.errors import Interrupted, TorchcapsError


def append(*, file: str, text: str, console: Console) -> None:
    """Append a line; its console says so in the log."""
    console.print(f"appending {text}")
    with Path(file).open("a") as out:
        out.write(f"{text}\n")


def write_variables(*, file: str, names: list[str], console: Console) -> None:
    """What this process has of some environment variables."""
    Path(file).write_text(json.dumps({name: os.environ.get(name) for name in names}))


def fail(*, message: str, console: Console) -> None:
    raise TorchcapsError(message)


def killed_once(*, file: str, times: int, console: Console) -> None:
    """Killed as for memory, until the file has so many lines."""
    lines = Path(file).read_text().splitlines() if Path(file).exists() else []
    if len(lines) < times:
        append(file=file, text="killed", console=console)
        os.kill(os.getpid(), signal.SIGKILL)


def interrupted_once(*, file: str, console: Console) -> None:
    """Interrupted by a scheduler's signal the first time."""
    if not Path(file).exists():
        append(file=file, text="interrupted", console=console)
        raise Interrupted("a run", signal.SIGTERM)
    append(file=file, text="ended", console=console)


def wait_for(*, file: str, console: Console) -> None:
    """End when a file appears."""
    for _ in range(600):
        if Path(file).exists():
            return
        time.sleep(0.05)
    raise TorchcapsError(f"{file} did not appear")


def train_slowly(*, pause: float, console: Console, **arguments: Any) -> None:
    """`train_and_record`, with so many seconds before each step."""
    from torchcaps.papers.reproduce import train_and_record
    from torchcaps.training.state import Training  # the other functions need no torch

    original = Training.step

    def step(self):
        time.sleep(pause)
        original(self)

    Training.step = step
    try:
        train_and_record(**arguments, console=console)
    finally:
        Training.step = original
