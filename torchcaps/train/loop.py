"""The loop, one for every task: state is a step and tensors; all else is a function of the step."""

import math
import signal
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from torchcaps.data import Batch
from torchcaps.errors import TorchcapsError
from torchcaps.train import checkpoint
from torchcaps.train.checkpoint import State
from torchcaps.train.diagnose import NOT_FOUND, first_bad_layer
from torchcaps.train.finish import finish
from torchcaps.train.objectives import OBJECTIVES
from torchcaps.train.optim import Average, learning_rate
from torchcaps.train.progress import TrainingProgress
from torchcaps.train.recipe import Recipe
from torchcaps.train.record import environment
from torchcaps.train.run import Run, claimed
from torchcaps.train.setup import own_numbers, set_up


class Interrupted(Exception):
    """Ctrl-C: the run stands in its folder and can be resumed."""


class Training:
    """One run from its first or its last checkpoint to its record."""

    run: Run

    def __init__(self, recipe: Recipe, console: Console | None = None):
        self.recipe, self.parts = set_up(recipe)
        self.objective = OBJECTIVES[recipe.objective]
        self.state = State()
        parts = self.parts
        self.chief = parts.fabric.is_global_zero
        self.console = console if self.chief else None
        self.total = recipe.epochs * parts.loader.steps_per_epoch
        self.average = Average(parts.model, recipe.optimiser.ema) if recipe.optimiser.ema else None
        self.best: dict[str, Tensor] = {}
        self.losses = torch.zeros(parts.loader.steps_per_epoch, device=parts.fabric.device)
        self.interrupted = False
        # the first epochs, in which most happens, then every tenth of the run, and the last
        tenth = max(1, recipe.epochs // 10)
        self.pictured = {0, 1, 3, recipe.epochs - 1, *range(tenth - 1, recipe.epochs, tenth)}
        self.compute = self._loss
        mode = recipe.hardware.compile
        if mode == "auto":
            mode = "graphs" if parts.fabric.device.type == "cuda" else "none"
        if mode != "none":
            graphs = "reduce-overhead" if mode == "graphs" else None
            self.compute = torch.compile(self._loss, mode=graphs)
        # on a GPU a look at the loss waits for the device, so it is looked at now and then
        self.check_every = 1 if parts.fabric.device.type == "cpu" else 50

    def _loss(self, *tensors: Tensor | None) -> Tensor:
        """Of a batch, as its tensors: what a compiled step takes."""
        # alone on its device, the model is called as it is: fewer wrappers for torch.compile
        alone = self.parts.fabric.world_size == 1 and self.recipe.hardware.strategy != "fsdp"
        module = self.parts.model if alone else self.parts.module
        with self.parts.fabric.autocast():
            batch = Batch(*tensors)  # pyright: ignore[reportArgumentType]
            return self.objective.loss(module, batch, self.recipe.loss)["loss"]

    def step(self) -> None:
        """One update from batch number `state.step`."""
        parts, optimiser, step = self.parts, self.recipe.optimiser, self.state.step
        rate = learning_rate(self.recipe.schedule, optimiser.lr, step, self.total)
        for group in parts.optimiser.param_groups:
            group["lr"] = rate
        batch = parts.loader.batch(step)
        share = math.ceil(len(batch) / optimiser.accumulate)
        parts.optimiser.zero_grad(set_to_none=True)
        position = step % len(self.losses)
        self.losses[position] = 0
        for start in range(0, len(batch), share):
            part = batch[slice(start, start + share)]
            last = start + share >= len(batch)
            with parts.fabric.no_backward_sync(parts.module, enabled=not last):
                loss = self.compute(*part.tensors())
                loss = loss * (len(part) / len(batch))
                parts.fabric.backward(loss)
            self.losses[position] += loss.detach()
        if (step + 1) % self.check_every == 0 or position == len(self.losses) - 1:
            self._check_losses(step)
        if optimiser.clip:
            parts.fabric.clip_gradients(
                parts.module, parts.optimiser, max_norm=optimiser.clip, error_if_nonfinite=False
            )
        parts.optimiser.step()
        if self.average:
            self.average.update(step)
        self.state.step += 1

    def _check_losses(self, step: int) -> None:
        first = step - step % len(self.losses)
        bad = (~torch.isfinite(self.losses[: step - first + 1])).nonzero()
        if not self._any(len(bad) > 0):
            return
        bad_step = first + int(bad[0]) if len(bad) else step
        value = float(self.losses[bad_step - first])
        where = "one of several processes; run it on one device to see the layer"
        if self.parts.fabric.world_size == 1:
            where = self._replay(bad_step)
        raise TorchcapsError(
            f"The loss became {value} at step {bad_step}, first seen in {where}.\n"
            f"The last good checkpoint is step {self.state.step} in {self.run.checkpoints}; "
            "a smaller --optimiser.lr or --optimiser.clip 1 may help."
        )

    def _replay(self, bad_step: int) -> str:
        """Go back to the last checkpoint and take the steps again, the last two under watch.

        A gradient that is not finite shows in the loss one step later.
        """
        self.restore()
        good = replace(self.state)
        self.check_every = bad_step + len(self.losses) + 1
        where = NOT_FOUND
        while self.state.step <= bad_step and where == NOT_FOUND:
            if self.state.step >= bad_step - 1:
                batch = self.parts.loader.batch(self.state.step)
                where = first_bad_layer(self.parts.model, partial(self._loss, *batch.tensors()))
                if where != NOT_FOUND and self.state.step < bad_step:
                    where += f" at step {self.state.step}"
            if where == NOT_FOUND:
                self.step()
        self.state = good
        return where

    def save(self) -> None:
        """Write a checkpoint, unless the run has gone wrong: it replaces no good one then."""
        parts = self.parts
        if self.state.step:
            self._check_losses(self.state.step - 1)
        weights = checkpoint.model_tensors(parts.model)
        if not all(bool(torch.isfinite(t).all()) for t in weights.values()):
            return  # the next loss will tell
        training = checkpoint.optimiser_tensors(parts.model, parts.optimiser)
        training |= {f"best/{name}": tensor.cpu() for name, tensor in self.best.items()}
        if self.average:
            training |= {f"ema/{n}": checkpoint.full(t) for n, t in self.average.weights.items()}
        training |= {"losses": self.losses.cpu(), "rng/cpu": torch.get_rng_state()}
        if parts.fabric.device.type == "cuda":
            training["rng/cuda"] = torch.cuda.get_rng_state(parts.fabric.device)
        self.state.metrics_bytes = self.run.metrics_bytes()
        if self.chief:
            checkpoint.save(self.run.checkpoints, self.state, weights, training)
        parts.fabric.barrier()

    def restore(self) -> list[str]:
        """Take up the newest whole checkpoint; returns what was wrong with newer ones."""
        parts = self.parts
        self.state, weights, training, problems = checkpoint.load_last(self.run.checkpoints)
        checkpoint.restore_model(parts.model, weights)
        checkpoint.restore_optimiser(parts.model, parts.optimiser.optimizer, training)
        if self.average:
            for name, value in self.average.weights.items():
                value.copy_(checkpoint.like(training[f"ema/{name}"], value))
        device = parts.fabric.device
        self.best = {n[5:]: t.to(device) for n, t in training.items() if n.startswith("best/")}
        self.losses.copy_(training["losses"])
        torch.set_rng_state(training["rng/cpu"])
        if "rng/cuda" in training and device.type == "cuda":
            torch.cuda.set_rng_state(training["rng/cuda"], device)
        own_numbers(self.recipe.seed, parts.fabric.global_rank, self.state.step)
        return problems

    def validate(self, epoch: int, speed: float, progress: TrainingProgress) -> None:
        """Measure on validation data, remember the best weights, write a line of metrics."""
        parts, objective, state = self.parts, self.objective, self.state
        parts.model.eval()
        averaged = self.average.swapped() if self.average else nullcontext()
        with averaged, parts.fabric.autocast():
            watched = parts.data.val if self.recipe.stop_on == "val" else parts.data.test
            numbers = objective.numbers(parts.model, parts.data, watched, self.recipe.loss)
            value = numbers[objective.metric]
            if objective.better(value, state.best_value) or self.recipe.choose == "last":
                self.best = checkpoint.model_tensors(parts.model, cpu=False)
                state.best_value, state.best_epoch = value, epoch
            if objective.picture and epoch in self.pictured:
                name = f"reconstruction-{epoch + 1:04}.png"
                path = self.run.figures / name if self.chief else None
                objective.picture(parts.model, parts.data.val, self.recipe.loss, path)
        parts.model.train()
        loss = float(parts.fabric.all_reduce(self.losses.mean()))  # pyright: ignore
        rate = parts.optimiser.param_groups[0]["lr"]
        line = {"epoch": epoch, "step": state.step, "lr": rate, "train_loss": loss}
        line |= {f"{self.recipe.stop_on}_{name}": number for name, number in numbers.items()}
        if self.chief:
            self.run.log(line, tensorboard=self.recipe.tensorboard)
        shown = {"loss": loss, f"{self.recipe.stop_on} {objective.metric}": value}
        progress.epoch(epoch, self.recipe.epochs, shown, speed)

    def _any(self, mine: bool) -> bool:
        """Whether it is so on any process: what all must do together, all must decide together."""
        fabric = self.parts.fabric
        if fabric.world_size == 1:
            return mine
        flag = torch.tensor(float(mine), device=fabric.device)
        return float(fabric.all_reduce(flag, reduce_op="sum")) > 0  # pyright: ignore

    def reached(self) -> bool:
        target, best = self.recipe.target_accuracy, self.state.best_value
        measured = self.objective.metric == "accuracy"
        return bool(target) and measured and best is not None and best >= target

    def go(self) -> dict[str, Any]:
        """Train to the end, test the chosen model once, write the record."""
        main_thread = threading.current_thread() is threading.main_thread()
        previous = signal.getsignal(signal.SIGINT)
        if main_thread:
            signal.signal(signal.SIGINT, self._stop)
        try:
            self._steps()
        finally:
            if main_thread:
                signal.signal(signal.SIGINT, previous)
        return finish(self)

    def _stop(self, *_: object) -> None:
        self.interrupted = True

    def _steps(self) -> None:
        recipe, state, per_epoch = self.recipe, self.state, self.parts.loader.steps_per_epoch
        self.parts.model.train()
        saved = epoch_began = began = time.monotonic()
        before = state.seconds
        bar = TrainingProgress(recipe.name, self.total, state.step, recipe.batch_size, self.console)
        with bar as progress:
            while not state.finished:
                self.step()
                progress.step(state.step)
                if state.step % per_epoch == 0:
                    if self.parts.fabric.device.type == "cuda":
                        torch.cuda.synchronize()
                    spent = time.monotonic() - epoch_began
                    speed = per_epoch * recipe.batch_size / max(spent, 1e-9)
                    self.validate(state.step // per_epoch - 1, speed, progress)
                    state.finished = self.reached() or state.step >= self.total
                    epoch_began = time.monotonic()
                now = time.monotonic()
                state.seconds = before + now - began
                due = self._any(now - saved >= recipe.checkpoint_seconds)
                stopping = self._any(self.interrupted)
                if state.finished or stopping or due:
                    self.save()
                    saved = time.monotonic()
                if stopping and not state.finished:
                    raise Interrupted(str(self.run.folder))


def start(recipe: Recipe, out: Path | None = None, console: Console | None = None) -> Run:
    """A new run from its first step to its record."""
    training = Training(recipe, console)
    begun = environment(training.parts.fabric.device)
    folder = str(Run.create(training.recipe, out, begun).folder) if training.chief else ""
    training.run = Run(Path(training.parts.fabric.broadcast(folder)))
    with claimed(training.run.folder):
        training.save()
        training.go()
    return training.run


def resume(folder: str | Path, console: Console | None = None) -> Run:
    """Go on from the last checkpoint; a run that had ended is left as it is."""
    run = Run.open(folder)
    if not run.record_file.exists():
        with claimed(run.folder):
            _go_on(run, console)
    return run


def _go_on(run: Run, console: Console | None) -> None:
    recipe = run.recipe()
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
    training.go()
