"""The loop, one for every task: steps, validation after each epoch, checkpoints, the end."""

import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from torchcaps import plugins
from torchcaps.data import Dataset
from torchcaps.data.dataset import class_warnings
from torchcaps.data.registry import shared_loads
from torchcaps.errors import Interrupted, TorchcapsError, TorchcapsWarning
from torchcaps.escape import Console
from torchcaps.metrics.accuracy import Training as TrainAccuracy
from torchcaps.models.base import Model
from torchcaps.training import checkpoint
from torchcaps.training.device_lock import DeviceLock
from torchcaps.training.failures import explain_failures
from torchcaps.training.final_evaluation import finish
from torchcaps.training.hardware import evaluation_precision
from torchcaps.training.load import other_files
from torchcaps.training.progress import TrainingProgress
from torchcaps.training.provenance import environment
from torchcaps.training.recipe import Recipe, replaced
from torchcaps.training.registry import identity, marked
from torchcaps.training.run import Run, check_out, claimed
from torchcaps.training.setup import set_up
from torchcaps.training.state import Training
from torchcaps.training.task import Task
from torchcaps.training.track import Trackers

Callback = Callable[[dict[str, Any]], object]
"""Gets the metrics of each epoch; one that returns False ends the training."""
MANY_PARAMETERS = 50_000_000
"""More than any network of the papers has."""
FLAT_ROUNDS, FLAT = 5, 0.01
"""A loss is flat if the lowest of five epochs is not 1 % below the lowest of the five before."""
ALL_CORRECT = 0.99995
"""Training accuracy that is printed as 100.00 %."""
LOOK_SECONDS = 0.5
"""Time between looks for a file `stop` in a run's folder."""
WARMUP_STEPS = 10
"""Steps after which a run has compiled and may wait for the device lock."""
MACHINE_FIELDS = (
    "data.root", "hardware.artifacts", "hardware.in_turn", "hardware.decode_threads",
    "checkpoint_seconds", "track", "record",
)  # fmt: skip
"""Fields that a resume may set for its machine; the results stay the same."""


def _watched_rounds(rounds: int) -> set[int]:
    """Rounds that end with figures and watched metrics: the first few, every tenth, the last."""
    tenth = max(1, rounds // 10)
    return {0, 1, 3, rounds - 1, *range(tenth - 1, rounds, tenth)}


def _watch(training: Training, task: Task) -> dict[str, float]:
    """The recipe's `watch` metrics; probes take longer than a short epoch."""
    recipe, context = training.recipe, training.context
    split, numbers = recipe.stop_on, {}
    for metric in context.watch:
        own_data = metric.label == recipe.data.name
        for line in metric.fresh(context.fabric.device).evaluate(task.model, split):
            name = line["metric"] if own_data else f"{line['metric']}:{metric.label}"
            numbers[f"{split}_{name}"] = line["value"]
    return numbers


def _validate(
    training: Training, number: int, speed: float, progress: TrainingProgress
) -> dict[str, Any]:
    """Validate, remember the best weights, write and return a line of metrics.

    In the precision of the final evaluation, so that the chosen weights are the best there.
    """
    recipe, context, state = training.recipe, training.context, training.state
    split = recipe.stop_on
    with training.evaluated() as task, evaluation_precision(recipe.hardware):
        values = task.evaluate(getattr(context.data, split))
        numbers = {f"{split}_{name}": value for name, value in values.items()}
        if recipe.until == "fitted":
            everything = TrainAccuracy(images=len(context.data.train))
            numbers |= everything.score(task.model, context.data, context.data.train)
        by = "loss" if recipe.choose == "loss" else task.metric
        value, best = numbers[f"{split}_{by}"], state.best_value
        better = task.better(value, best)
        if recipe.choose == "loss":
            better = best is None or value <= best
        if better or recipe.choose == "last":
            if better and value != best:  # an equal one does not extend the patience
                state.improved_epoch = number
            training.best = checkpoint.tensors_of(task.model, cpu=False)
            state.best_value, state.best_epoch = value, number
        if number in _watched_rounds(-(-training.total // training.round)):
            numbers |= _watch(training, task)
            for name, save in task.figures(context.data).items():  # every process computes them
                if training.chief:
                    training.run.figures.mkdir(exist_ok=True)
                    save(training.run.figures / f"{name}-{number + 1:04}.png")
    means = training.round_means()
    line = {"epoch": number, "step": state.step, "lr": context.optimizer.param_groups[0]["lr"]}
    line |= {f"train_{name}": mean for name, mean in means.items()} | numbers
    if training.chief:
        training.run.log(line)
    progress.round(
        number, state.step, {"loss": means["loss"], f"{split} {by}": value}, speed
    )  # fmt: skip
    return line


def _target_reached(training: Training) -> bool:
    target, best = training.recipe.target_accuracy, training.state.best_value
    by_accuracy = training.context.task.metric == "accuracy" and training.recipe.choose != "loss"
    return bool(target) and by_accuracy and best is not None and best >= target


class Stop(threading.Event):
    """Set by a signal, whose number it keeps."""

    signal = 0

    def by_signal(self, number: int, _frame: object) -> None:
        self.signal = number
        self.set()


def _fitted(training: Training) -> bool:
    """True if all training images are classified correctly, or the training loss is flat."""
    if training.recipe.until != "fitted" or not training.chief:
        return False
    lines = training.run.metrics
    losses = [line["train_loss"] for line in lines]
    recent, before = losses[-FLAT_ROUNDS:], losses[-2 * FLAT_ROUNDS : -FLAT_ROUNDS]
    flat = len(before) == FLAT_ROUNDS and min(recent) > (1 - FLAT) * min(before)
    return flat or lines[-1]["train_accuracy"] >= ALL_CORRECT


def _out_of_patience(training: Training, number: int) -> bool:
    """True if so many validations came since the best one."""
    patience = training.recipe.patience
    return bool(patience) and number - training.state.improved_epoch >= patience


@contextmanager
def _stop_signals() -> Iterator[Stop]:
    """An event that Ctrl-C sets, or a scheduler's TERM, HUP, USR1 or USR2 (preemption, time limit),
    so that a step ends first.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    signals = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup outlives a logout
        signals.append(signal.SIGHUP)
    previous = {number: signal.signal(number, stop.by_signal) for number in signals}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def train_to_end(
    training: Training, command: str = "", callbacks: Sequence[Callback] = ()
) -> dict[str, Any]:
    """Train to the end, evaluate the chosen model once on the test split, write the record."""
    with _stop_signals() as stop:
        trackers = Trackers(training.run, training.recipe, _reporter(training), training.chief)
        try:
            _steps(training, stop, [*callbacks, trackers.log])
        finally:
            trackers.close()
    training.save_artifacts()
    return finish(training, command)


def _reporter(training: Training) -> Callable[[str], object]:
    """Prints a remark where the run shows its progress, or else on stderr."""
    to = training.console or Console(stderr=True)
    return lambda text: to.print(text, markup=False, highlight=False, soft_wrap=True)


def _steps(training: Training, stop: Stop, callbacks: Sequence[Callback]) -> None:
    recipe, state, per_round = training.recipe, training.state, training.round
    device = training.context.fabric.device
    training.context.task.train()
    saved = looked = round_start = start = time.monotonic()
    before, steps_taken = state.seconds, 0
    by_epochs = per_round == training.context.loader.steps_per_epoch and not recipe.steps
    bar = TrainingProgress(
        recipe.name, training.total, state.step, recipe.batch_size,
        recipe.epochs if by_epochs else 0, training.console,
    )  # fmt: skip
    with bar as progress, DeviceLock(device, recipe.hardware.in_turn) as device_lock:
        while not state.finished:
            training.step()
            progress.step(state.step)
            steps_taken += 1
            if steps_taken == WARMUP_STEPS and state.step < training.total:
                waited = device_lock.wait(stop, progress.console.print)
                start, round_start = start + waited, round_start + waited
            if state.step % per_round == 0 or state.step == training.total:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                number, done = divmod(state.step - 1, per_round)
                spent = time.monotonic() - round_start
                speed = (done + 1) * recipe.batch_size / max(spent, 1e-9)
                line = _validate(training, number, speed, progress)
                ended = [callback(dict(line)) is False for callback in callbacks]
                ended += [_fitted(training), _out_of_patience(training, number)]
                ended = training.on_any_process(any(ended))
                state.finished = ended or _target_reached(training) or state.step >= training.total
                round_start, looked = time.monotonic(), float("-inf")
            now = time.monotonic()
            if now - looked >= LOOK_SECONDS:
                looked = now
                if training.run.stop_file.exists():
                    stop.set()
            state.seconds = before + now - start
            due = training.on_any_process(now - saved >= recipe.checkpoint_seconds)
            stopping = training.on_any_process(stop.is_set())
            if state.finished or stopping or due:
                training.save()
                saved = time.monotonic()
            if stopping and not state.finished:
                raise Interrupted(str(training.run.folder), stop.signal)


def start(
    recipe: Recipe,
    out: Path | None = None,
    console: Console | None = None,
    command: str = "",
    *,
    model: Model | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Train a new run from its first step to its record.

    command: the command that gives this run again, if it is not this process's own. model: an
    instance whose weights are the initial ones
    """
    check_out(out)
    wanted = marked(recipe)
    recipe, context = set_up(wanted, model=model)
    facts = {**environment(context.fabric.device, command), **identity(wanted)}
    facts |= {"files": context.data.files} if context.data.files else {}
    facts |= {"plugins": plugins.loaded()} if plugins.loaded() else {}
    facts |= {"initial": "a model instance"} if model is not None else {}
    chief = context.fabric.is_global_zero
    folder = str(Run.create(recipe, out, facts).folder) if chief else ""
    run = Run(Path(context.fabric.broadcast(folder)))
    training = Training(recipe, context, run, console)
    if training.console:
        for remark in _remarks(training):
            training.console.print(remark, markup=False, highlight=False, soft_wrap=True)
    for text in class_warnings(context.data) if chief else ():
        warnings.warn(text, TorchcapsWarning, stacklevel=2)
    with claimed(run.folder, recipe), explain_failures(run.folder, context.fabric.world_size):
        training.save()
        train_to_end(training, command, callbacks)
    return run


def _remarks(training: Training) -> Iterator[str]:
    """Remarks before the first step."""
    context, model = training.context, training.context.task.model
    if context.data.storage:
        yield f"{context.data.name}: {context.data.storage}."
    if context.init_report:
        yield context.init_report
    if context.unlabelled:
        names = ", ".join(context.unlabelled)
        yield f"{context.data.name} has no labels: skipping the metrics {names}."
    if model.num_parameters > MANY_PARAMETERS:
        _, height, width = model.config.image_shape
        yield (
            f"This {model.config.family} has {model.num_parameters / 1e6:.0f} million parameters "
            f"for {height}x{width} images, more than most data sets can train: choose a smaller "
            "size=."
        )


def resume(
    folder: str | Path,
    console: Console | None = None,
    command: str = "",
    data: Dataset | None = None,
    recipe: Recipe | None = None,
    in_turn: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Resume a run from its last checkpoint; a finished run is left as it is.

    data: the data in memory that the run was started with. recipe: the run's own with another
    optimizer or schedule, which the record then says, or other `MACHINE_FIELDS`. in_turn: as in
    `HardwareSpec`, for runs started without
    """
    run = Run.open(folder)
    recipe = recipe or run.recipe()
    if in_turn:
        recipe = replace(recipe, hardware=replace(recipe.hardware, in_turn=True))
    recipe, changes = _changed(run, recipe)
    memory = None if data is None else (data, recipe.data.seed)
    if not run.finished:
        processes = recipe.hardware.processes
        with (
            claimed(run.folder, recipe),
            shared_loads(memory),
            explain_failures(run.folder, processes),
        ):
            if not run.finished:  # it may have ended since
                run.stop_file.unlink(missing_ok=True)
                _continue(run, recipe, changes, console, command, callbacks)
    elif recipe.hardware.processes == 1 and len(list(run.checkpoints.glob("*"))) > 1:
        # killed after its record was written, before its checkpoints were reduced to the last
        with suppress(TorchcapsError, OSError), claimed(run.folder, recipe):
            checkpoint.drop_training_state(run.checkpoints)
    return Run(run.folder, data)


def _changed(run: Run, recipe: Recipe) -> tuple[Recipe, list[str]]:
    """The recipe of a resumed run, marked if it differs, and its changes as field=value."""
    fields = replaced(recipe, run.recipe())
    changes = {n: v for n, v in fields.items() if n not in MACHINE_FIELDS}
    fixed = [n for n in changes if not n.startswith(("optimizer.", "schedule."))]
    if fixed:
        raise TorchcapsError(
            f"A resumed run keeps its {', '.join(fixed)}. To change that, train a new run."
        )
    if changes and run.finished:
        raise TorchcapsError(f"{run.folder} is finished: its fields cannot be replaced.")
    recipe = marked(recipe) if changes else recipe
    return recipe, [f"{name}={value}" for name, value in changes.items()]


def _continue(
    run: Run,
    recipe: Recipe,
    changes: list[str],
    console: Console | None,
    command: str,
    callbacks: Sequence[Callback],
) -> None:
    first_start = run.start()  # read now, so that a damaged file is found before the training
    checkpoint.tidy(run.checkpoints)
    saved = bool(checkpoint.numbered(run.checkpoints))  # else killed before the first checkpoint
    if not saved and "initial" in first_start:
        raise TorchcapsError(
            f"{run.folder} was killed before its first checkpoint, and its initial weights were in "
            "memory: call fit again."
        )
    run.require_plugins()
    # The checkpoint holds every weight, so the run it started from may be gone.
    weights = checkpoint.load_last(run.checkpoints)[1] if saved else None
    recipe, context = set_up(recipe, weights)
    if other_files(first_start, context.data):
        raise TorchcapsError(
            f"{context.data.name} has other files than when the run began: restore them, or train "
            "a new run."
        )
    training = Training(recipe, context, run, console)
    if saved:
        for problem in training.restore():
            if console:
                console.print(f"{problem}\nResuming at step {training.state.step}.", style="yellow")
    if training.chief:
        run.cut_metrics(training.state.metrics_bytes)
        if changes or replaced(recipe, run.recipe()):  # now that the recipe is known to work
            run.replace_recipe(recipe, changes)
    train_to_end(training, command, callbacks)
