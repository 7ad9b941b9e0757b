"""The loop, one for every task: steps, validation after each epoch, checkpoints, the end."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from torchcaps.train import checkpoint
from torchcaps.train.finish import finish
from torchcaps.train.progress import TrainingProgress
from torchcaps.train.recipe import Recipe
from torchcaps.train.record import environment
from torchcaps.train.run import Run, claimed
from torchcaps.train.training import Training


class Interrupted(Exception):
    """Ctrl-C: the run stands in its folder and can be resumed."""


def _pictured(epochs: int) -> set[int]:
    """The first epochs, in which most happens, then every tenth of the run, and the last."""
    tenth = max(1, epochs // 10)
    return {0, 1, 3, epochs - 1, *range(tenth - 1, epochs, tenth)}


def _validate(training: Training, epoch: int, speed: float, progress: TrainingProgress) -> None:
    """Measure on validation data, remember the best weights, write a line of metrics."""
    recipe, parts = training.recipe, training.parts
    objective, state = training.objective, training.state
    parts.model.eval()
    averaged = training.average.swapped() if training.average else nullcontext()
    with averaged, parts.fabric.autocast():
        watched = parts.data.val if recipe.stop_on == "val" else parts.data.test
        numbers = objective.numbers(parts.model, parts.data, watched, recipe.loss)
        value = numbers[objective.metric]
        if objective.better(value, state.best_value) or recipe.choose == "last":
            training.best = checkpoint.model_tensors(parts.model, cpu=False)
            state.best_value, state.best_epoch = value, epoch
        if objective.picture and epoch in _pictured(recipe.epochs):
            name = f"reconstruction-{epoch + 1:04}.png"
            path = training.run.figures / name if training.chief else None
            objective.picture(parts.model, parts.data.val, recipe.loss, path)
    parts.model.train()
    loss = float(parts.fabric.all_reduce(training.losses.mean()))  # pyright: ignore
    rate = parts.optimiser.param_groups[0]["lr"]
    line = {"epoch": epoch, "step": state.step, "lr": rate, "train_loss": loss}
    line |= {f"{recipe.stop_on}_{name}": number for name, number in numbers.items()}
    if training.chief:
        training.run.log(line, tensorboard=recipe.tensorboard)
    shown = {"loss": loss, f"{recipe.stop_on} {objective.metric}": value}
    progress.epoch(epoch, recipe.epochs, shown, speed)


def _reached(training: Training) -> bool:
    target, best = training.recipe.target_accuracy, training.state.best_value
    measured = training.objective.metric == "accuracy"
    return bool(target) and measured and best is not None and best >= target


@contextmanager
def _ctrl_c() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets, in place of an exception amid a step."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    previous = signal.signal(signal.SIGINT, lambda *_: asked.set())
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, previous)


def go(training: Training) -> dict[str, Any]:
    """Train to the end, test the chosen model once, write the record."""
    with _ctrl_c() as asked:
        _steps(training, asked)
    return finish(training)


def _steps(training: Training, asked: threading.Event) -> None:
    recipe, state = training.recipe, training.state
    per_epoch = training.parts.loader.steps_per_epoch
    training.parts.model.train()
    saved = epoch_began = began = time.monotonic()
    before = state.seconds
    bar = TrainingProgress(
        recipe.name, training.total, state.step, recipe.batch_size, training.console
    )
    with bar as progress:
        while not state.finished:
            training.step()
            progress.step(state.step)
            if state.step % per_epoch == 0:
                if training.parts.fabric.device.type == "cuda":
                    torch.cuda.synchronize()
                spent = time.monotonic() - epoch_began
                speed = per_epoch * recipe.batch_size / max(spent, 1e-9)
                _validate(training, state.step // per_epoch - 1, speed, progress)
                state.finished = _reached(training) or state.step >= training.total
                epoch_began = time.monotonic()
            now = time.monotonic()
            state.seconds = before + now - began
            due = training.any_of_us(now - saved >= recipe.checkpoint_seconds)
            stopping = training.any_of_us(asked.is_set())
            if state.finished or stopping or due:
                training.save()
                saved = time.monotonic()
            if stopping and not state.finished:
                raise Interrupted(str(training.run.folder))


def start(recipe: Recipe, out: Path | None = None, console: Console | None = None) -> Run:
    """A new run from its first step to its record."""
    training = Training(recipe, console)
    begun = environment(training.parts.fabric.device)
    folder = str(Run.create(training.recipe, out, begun).folder) if training.chief else ""
    training.run = Run(Path(training.parts.fabric.broadcast(folder)))
    with claimed(training.run.folder, recipe):
        training.save()
        go(training)
    return training.run


def resume(folder: str | Path, console: Console | None = None) -> Run:
    """Go on from the last checkpoint; a run that had ended is left as it is."""
    run = Run.open(folder)
    recipe = run.recipe()
    if not run.record_file.exists():
        with claimed(run.folder, recipe):
            if not run.record_file.exists():  # it may have ended since
                _go_on(run, recipe, console)
    return run


def _go_on(run: Run, recipe: Recipe, console: Console | None) -> None:
    begun = bool(checkpoint.numbered(run.checkpoints))  # else killed before the first: begin again
    # The checkpoint holds every weight, so what it began with may be gone.
    training = Training(replace(recipe, start_from="") if begun else recipe, console)
    training.recipe = replace(training.recipe, start_from=recipe.start_from)
    training.run = run
    if begun:
        for problem in training.restore():
            if console:
                going = f"Going on from step {training.state.step}."
                console.print(f"{problem}\n{going}", style="yellow")
    if training.chief:
        run.cut_metrics(training.state.metrics_bytes)
    go(training)
