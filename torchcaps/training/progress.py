"""The progress display: images a second, time left, the last numbers."""

from typing import Self

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from torchcaps.escape import Console


class _Speed(ProgressColumn):
    def __init__(self, batch_size: int):
        super().__init__()
        self.batch_size = batch_size

    def render(self, task: Task) -> Text:
        return Text(f"{(task.speed or 0) * self.batch_size:,.0f} images/s", style="cyan")


class _Bar:
    """A rich progress display as a context."""

    progress: Progress

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()


class TrainingProgress(_Bar):
    """A bar on a terminal; a line an epoch, or every so many steps, where the output is a file."""

    def __init__(
        self,
        name: str,
        total: int,
        start: int,
        batch_size: int,
        epochs: int,
        console: Console | None,
    ):
        """epochs: 0 where the run counts steps"""
        self.total, self.epochs = total, epochs
        self.console = console or Console(quiet=True)
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps"),
            _Speed(batch_size),
            TimeRemainingColumn(),
            TextColumn("{task.fields[numbers]}", markup=False),
            console=self.console,
            disable=not (self.console.is_terminal or self.console.is_jupyter),
            transient=True,
        )
        self.task = self.progress.add_task(name, total=total, completed=start, numbers="")

    def step(self, completed: int) -> None:
        self.progress.update(self.task, completed=completed)

    def round(self, number: int, step: int, numbers: dict[str, float], speed: float) -> None:
        shown = "  ".join(f"{k} {v:.4f}" for k, v in numbers.items())
        self.progress.update(self.task, numbers=shown)
        place = f"epoch {number + 1}/{self.epochs}" if self.epochs else f"step {step}/{self.total}"
        self.console.print(f"{place}  {shown}  {speed:,.0f} images/s", style="dim")


class MetricProgress(_Bar):
    """A bar on a terminal for what a measure is doing; where the output is a file, nothing."""

    def __init__(self, console: Console | None):
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console or Console(quiet=True),
            disable=not (console and (console.is_terminal or console.is_jupyter)),
            transient=True,
        )
        self.what = ""

    def __call__(self, what: str, done: int, total: int) -> None:
        if what != self.what:
            for task in self.progress.task_ids:
                self.progress.remove_task(task)
            self.progress.add_task(what, total=total)
            self.what = what
        self.progress.update(self.progress.task_ids[-1], completed=done)
