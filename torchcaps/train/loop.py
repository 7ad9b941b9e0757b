"""The loop, one for every task: steps, validation after each epoch, checkpoints, the end."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from torchcaps.analysis.figure import save_figure
from torchcaps.analysis.views import get_view
from torchcaps.data.given import as_dataset
from torchcaps.data.registry import shared_loads
from torchcaps.errors import Interrupted, TorchcapsError
from torchcaps.train import checkpoint
from torchcaps.train.failing import told
from torchcaps.train.finish import finish
from torchcaps.train.load import other_files
from torchcaps.train.progress import TrainingProgress
from torchcaps.train.recipe import Recipe, replaced
from torchcaps.train.record import environment
from torchcaps.train.registry import identity, marked
from torchcaps.train.run import Run, claimed
from torchcaps.train.setup import set_up
from torchcaps.train.sharing import Turn
from torchcaps.train.tasks import Task
from torchcaps.train.training import Training

LARGE = 50_000_000
"""Parameters that no network of the papers has."""
WARM = 10
"""Steps after which a run has compiled and can wait for its turn, if it takes turns."""


def _looked_at(rounds: int) -> set[int]:
    """Rounds whose end is drawn and measured: the first ones, in which most happens, then every
    tenth of the run, and the last."""
    tenth = max(1, rounds // 10)
    return {0, 1, 3, rounds - 1, *range(tenth - 1, rounds, tenth)}


def _evaluated(training: Training, task: Task) -> dict[str, float]:
    """What the task says of the split that chooses."""
    split = training.recipe.stop_on
    found = task.evaluate(getattr(training.parts.data, split))
    return {f"{split}_{name}": value for name, value in found.items()}


def _watched(training: Training, task: Task) -> dict[str, float]:
    """What the recipe's `watch` says of that split: probes take longer than a short epoch."""
    recipe, parts = training.recipe, training.parts
    split, numbers = recipe.stop_on, {}
    for measure in parts.watch:
        own = measure.label == recipe.data.name
        for line in measure.anew(parts.fabric.device).take(task.model, split):
            name = line["metric"] if own else f"{line['metric']}:{measure.label}"
            numbers[f"{split}_{name}"] = line["value"]
    return numbers


def _validate(training: Training, number: int, speed: float, progress: TrainingProgress) -> None:
    """Measure on validation data, remember the best weights, write a line of metrics."""
    recipe, parts, state = training.recipe, training.parts, training.state
    with training.evaluated() as task, parts.fabric.autocast():
        numbers = _evaluated(training, task)
        by = "loss" if recipe.choose == "loss" else task.metric
        value, known = numbers[f"{recipe.stop_on}_{by}"], state.best_value
        better = task.better(value, known)
        if recipe.choose == "loss":
            better = known is None or value <= known
        if better or recipe.choose == "last":
            training.best = checkpoint.tensors_of(task.model, cpu=False)
            state.best_value, state.best_epoch = value, number
        if number in _looked_at(-(-training.total // training.round)):
            numbers |= _watched(training, task)
            _draw(training, task, number)
    means = training.round_means()
    rate = parts.optimiser.param_groups[0]["lr"]
    line = {"epoch": number, "step": state.step, "lr": rate}
    line |= {f"train_{name}": mean for name, mean in means.items()} | numbers
    if training.chief:
        training.run.log(line, tensorboard=recipe.tensorboard)
    shown = {"loss": means["loss"], f"{recipe.stop_on} {by}": value}
    progress.round(number, state.step, shown, speed)


def _draw(training: Training, task: Task, number: int) -> None:
    """Every process takes part in what is computed; the first one writes."""
    for name in task.pictures:
        view = get_view(name)
        arrays = view.compute(task.model, training.parts.data)
        if training.chief:
            training.run.figures.mkdir(exist_ok=True)
            path = training.run.figures / f"{name}-{number + 1:04}.png"
            save_figure(view.draw({name: arrays}), path, dpi=110)


def _reached(training: Training) -> bool:
    target, best = training.recipe.target_accuracy, training.state.best_value
    measured = training.parts.task.metric == "accuracy" and training.recipe.choose != "loss"
    return bool(target) and measured and best is not None and best >= target


@contextmanager
def _stopped() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets, or a scheduler's TERM or HUP, in place of an end amid a step."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    caught = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # else nohup is to outlive a logout
        caught.append(signal.SIGHUP)
    previous = {number: signal.signal(number, lambda *_: asked.set()) for number in caught}
    try:
        yield asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def train_to_end(training: Training, command: str = "") -> dict[str, Any]:
    """Train to the end, test the chosen model once, write the record."""
    with _stopped() as asked:
        _steps(training, asked)
    return finish(training, command)


def _steps(training: Training, asked: threading.Event) -> None:
    recipe, state, per_round = training.recipe, training.state, training.round
    device = training.parts.fabric.device
    training.parts.task.train()
    saved = round_began = began = time.monotonic()
    before, taken = state.seconds, 0
    by_epochs = per_round == training.parts.loader.steps_per_epoch and not recipe.steps
    bar = TrainingProgress(
        recipe.name, training.total, state.step, recipe.batch_size,
        recipe.epochs if by_epochs else 0, training.console,
    )  # fmt: skip
    with bar as progress, Turn(device, recipe.hardware.in_turn) as turn:
        while not state.finished:
            training.step()
            progress.step(state.step)
            taken += 1
            if taken == WARM and state.step < training.total:
                waited = turn.wait(asked, progress.console.print)
                began, round_began = began + waited, round_began + waited
            if state.step % per_round == 0 or state.step == training.total:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                number, done = divmod(state.step - 1, per_round)
                spent = time.monotonic() - round_began
                speed = (done + 1) * recipe.batch_size / max(spent, 1e-9)
                _validate(training, number, speed, progress)
                state.finished = _reached(training) or state.step >= training.total
                round_began = time.monotonic()
            now = time.monotonic()
            state.seconds = before + now - began
            due = training.on_any_process(now - saved >= recipe.checkpoint_seconds)
            stopping = training.on_any_process(asked.is_set())
            if state.finished or stopping or due:
                training.save()
                saved = time.monotonic()
            if stopping and not state.finished:
                raise Interrupted(str(training.run.folder))


def fit(
    recipe: Recipe, out: str | Path | None = None, *, data: Any = None, quiet: bool = False
) -> Run:
    """Run a recipe to its end: `torchcaps.fit(torchcaps.Recipe(epochs=3)).record()`.

    out: the folder of the run; default: runs/<recipe>-s<seed>. data: in place of the recipe's, as
    `data.as_dataset` takes it: (images, labels), a torch Dataset, an iterable of (image, label).
    quiet: show no progress
    """
    to, console = Path(out) if out else None, None if quiet else Console(stderr=True)
    if data is None:
        return start(recipe, to, console)
    spec = replace(recipe.data, name="given", root="")
    with shared_loads((as_dataset(data, seed=spec.seed), spec.seed)):
        return start(replace(recipe, data=spec), to, console)


def start(
    recipe: Recipe, out: Path | None = None, console: Console | None = None, command: str = ""
) -> Run:
    """A new run from its first step to its record.

    command: the one that gives this run again, where it is not this process's own
    """
    asked = marked(recipe)
    recipe, parts = set_up(asked)
    begun = {**environment(parts.fabric.device, command), **identity(asked)}
    begun |= {"files": parts.data.files} if parts.data.files else {}
    chief = parts.fabric.is_global_zero
    folder = str(Run.create(recipe, out, begun).folder) if chief else ""
    run = Run(Path(parts.fabric.broadcast(folder)))
    training = Training(recipe, parts, run, console)
    if training.console:
        for sentence in _remarks(training):
            training.console.print(sentence, markup=False, highlight=False, soft_wrap=True)
    with claimed(run.folder, recipe), told(run.folder, parts.fabric.world_size):
        training.save()
        train_to_end(training, command)
    return run


def _remarks(training: Training) -> Iterator[str]:
    """What one should know before the first step."""
    parts, model = training.parts, training.parts.task.model
    if parts.begun:
        yield parts.begun
    if parts.left_out:
        names = ", ".join(parts.left_out)
        yield f"{parts.data.name} has no labels: {names} cannot be measured."
    if model.num_parameters > LARGE:
        _, height, width = model.config.image_shape
        yield (
            f"This {model.config.family} has {model.num_parameters / 1e6:.0f} million parameters "
            f"for {height}x{width} images, more than most sets can teach: give a smaller size=."
        )


def resume(
    folder: str | Path,
    console: Console | None = None,
    command: str = "",
    data: Any = None,
    recipe: Recipe | None = None,
    in_turn: bool = False,
) -> Run:
    """Go on from the last checkpoint; a run that had ended is left as it is.

    data: once more what `fit` was given. recipe: the run's own with another rate or schedule, which
    is what the record then says, or another folder of the data. in_turn: as in `HardwareSpec`, for
    runs begun without
    """
    run = Run.open(folder)
    recipe = recipe or run.recipe()
    if in_turn:
        recipe = replace(recipe, hardware=replace(recipe.hardware, in_turn=True))
    recipe, changes = run.changed(recipe)
    given = None if data is None else (as_dataset(data, seed=recipe.data.seed), recipe.data.seed)
    if not run.record_file.exists():
        processes = recipe.hardware.processes
        with claimed(run.folder, recipe), shared_loads(given), told(run.folder, processes):
            if not run.record_file.exists():  # it may have ended since
                _take_up(run, recipe, changes, console, command)
    return run


def _take_up(
    run: Run, recipe: Recipe, changes: list[str], console: Console | None, command: str
) -> None:
    beginning = run.start()  # what cannot be read is said now, not after all the training
    checkpoint.tidy(run.checkpoints)
    begun = bool(checkpoint.numbered(run.checkpoints))  # else killed before the first: begin again
    # The checkpoint holds every weight, so what it began with may be gone.
    recipe, parts = set_up(recipe, take=not begun)
    if other_files(beginning, parts.data):
        raise TorchcapsError(
            f"{parts.data.name} has other files than when the run began: put them back, or begin "
            "another run."
        )
    training = Training(recipe, parts, run, console)
    if begun:
        for problem in training.restore():
            if console:
                going = f"Going on from step {training.state.step}."
                console.print(f"{problem}\n{going}", style="yellow")
    if training.chief:
        run.cut_metrics(training.state.metrics_bytes)
        if changes or replaced(recipe, run.recipe()):  # now that it is known to be good
            run.change(recipe, changes)
    train_to_end(training, command)
