"""The state of a run, one step of it, and its checkpoints; all else is a function of the step."""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial

import torch
from rich.console import Console
from torch import Tensor

from torchcaps.data import Batch
from torchcaps.errors import TorchcapsError
from torchcaps.train import checkpoint
from torchcaps.train.checkpoint import State
from torchcaps.train.diagnose import NOT_FOUND, first_bad_layer
from torchcaps.train.optim import Average, learning_rate
from torchcaps.train.recipe import Recipe
from torchcaps.train.run import Run
from torchcaps.train.setup import Parts, build_task, seed_process
from torchcaps.train.tasks import Task


class Training:
    """What a run is at a step, and the way to the next one."""

    def __init__(self, recipe: Recipe, parts: Parts, run: Run, console: Console | None = None):
        """recipe: with its sizes filled in, as `set_up` returns it with the parts"""
        self.recipe, self.parts, self.run = recipe, parts, run
        self.state = State()
        self.chief = parts.fabric.is_global_zero
        self.console = console if self.chief else None
        per_epoch = parts.loader.steps_per_epoch
        self.total = recipe.steps or recipe.epochs * per_epoch
        self.round = min(recipe.validate_every or per_epoch, self.total)
        """Updates between two looks at the validation images."""
        task, ema = parts.task, recipe.optimiser.ema
        self.average = Average(task.model, ema) if ema else None
        self.best: dict[str, Tensor] = {}
        self.history: dict[str, Tensor] = {}
        """Every scalar part of the loss at each update of the present round."""
        self.compute = self._parts_of_loss
        mode = recipe.hardware.compile
        if mode == "auto":
            mode = "graphs" if parts.fabric.device.type == "cuda" else "none"
        if mode != "none":
            graphs = "reduce-overhead" if mode == "graphs" else None
            self.compute = torch.compile(self._parts_of_loss, mode=graphs)
        # on a GPU a look at the loss waits for the device, so it is looked at now and then
        self.check_every = 1 if parts.fabric.device.type == "cpu" else 50

    def _parts_of_loss(self, *tensors: Tensor | None) -> dict[str, Tensor]:
        """The task's parts of a batch, from its tensors: what a compiled step takes."""
        # alone on its device, the task is called as it is: fewer wrappers for torch.compile
        alone = self.parts.fabric.world_size == 1 and self.recipe.hardware.strategy != "fsdp"
        module = self.parts.task if alone else self.parts.module
        with self.parts.fabric.autocast():
            return module(Batch(*tensors))  # pyright: ignore[reportArgumentType]

    def step(self) -> None:
        """One update from batch number `state.step`."""
        parts, optimiser, step = self.parts, self.recipe.optimiser, self.state.step
        rate = learning_rate(self.recipe.schedule, optimiser.lr, step, self.total)
        for group in parts.optimiser.param_groups:
            group["lr"] = rate * group["factor"]
        batch = parts.loader.batch(step)
        share = math.ceil(len(batch) / optimiser.accumulate)
        parts.optimiser.zero_grad(set_to_none=True)
        averaged: dict[str, Tensor] = {}
        for start in range(0, len(batch), share):
            part = batch[slice(start, start + share)]
            last = start + share >= len(batch)
            with parts.fabric.no_backward_sync(parts.module, enabled=not last):
                found = self.compute(*part.tensors())
                weight = len(part) / len(batch)
                parts.fabric.backward(found["loss"] * weight)
            for name, value in found.items():
                value = value.detach().float()
                value = value if weight == 1 else value * weight
                averaged[name] = averaged[name] + value if name in averaged else value
        self._remember(averaged)
        position = step % self.round
        if (step + 1) % self.check_every == 0 or position == self.round - 1:
            self._check_losses(step)
        if optimiser.clip:
            parts.fabric.clip_gradients(
                parts.module, parts.optimiser, max_norm=optimiser.clip, error_if_nonfinite=False
            )
        parts.optimiser.step()
        if type(parts.task).after_step is not Task.after_step:
            parts.task.after_step(step, self._over_processes(averaged))
        if self.average:
            self.average.update(step)
        self.state.step += 1

    def _remember(self, averaged: dict[str, Tensor]) -> None:
        scalars = {name: value for name, value in averaged.items() if value.ndim == 0}
        if not self.history:
            device = self.parts.fabric.device
            self.history = {n: torch.zeros(self.round, device=device) for n in scalars}
        for name, value in scalars.items():
            self.history[name][self.state.step % self.round] = value

    def _over_processes(self, averaged: dict[str, Tensor]) -> dict[str, Tensor]:
        """Copies that a task may keep: the memory of a CUDA graph is written again."""
        copies = {name: value.clone() for name, value in averaged.items()}
        fabric = self.parts.fabric
        if fabric.world_size == 1:
            return copies
        return {n: fabric.all_reduce(t, reduce_op="mean") for n, t in copies.items()}  # pyright: ignore

    def round_means(self) -> dict[str, float]:
        """The mean of every part of the loss over the updates of the round that ends here."""
        done = (self.state.step - 1) % self.round + 1
        names = sorted(self.history, key=lambda name: (name != "loss", name))
        means = {name: self.history[name][:done].mean() for name in names}
        return {n: float(self.parts.fabric.all_reduce(t)) for n, t in means.items()}  # pyright: ignore

    @contextmanager
    def evaluated(self) -> Iterator[Task]:
        """The task as it is evaluated: averaged weights if there are any, whole on this device."""
        task = self.parts.task
        averaged = self.average.swapped() if self.average else nullcontext()
        with averaged:
            if self.recipe.hardware.strategy == "fsdp":
                with torch.random.fork_rng(devices=[]):
                    task = build_task(self.recipe).to(self.parts.fabric.device)
                checkpoint.restore(task, checkpoint.tensors_of(self.parts.task, cpu=False))
            task.eval()
            yield task
        self.parts.task.train()

    def _check_losses(self, step: int) -> None:
        first = step - step % self.round
        losses = self.history["loss"]
        bad = (~torch.isfinite(losses[: step - first + 1])).nonzero()
        if not self.on_any_process(len(bad) > 0):
            return
        bad_step = first + int(bad[0]) if len(bad) else step
        value = float(losses[bad_step - first])
        where = "one of several processes; run it on one device to see the layer"
        if self.parts.fabric.world_size == 1:
            where = self._replay(bad_step)
        if self.chief:  # weights that gave this loss are of no use to anybody
            checkpoint.forget_from(self.run.checkpoints, bad_step)
        good = next((int(p.name) for p in checkpoint.numbered(self.run.checkpoints)), 0)
        raise TorchcapsError(
            f"The loss became {value} at step {bad_step}, first seen in {where}.\n"
            f"The last good checkpoint is step {good}; with a smaller rate it may go on: "
            f"torchcaps resume {self.run.folder} --optimiser.lr {self.recipe.optimiser.lr / 10:g}"
        )

    def _replay(self, bad_step: int) -> str:
        """Go back to the last checkpoint and take the steps again, the last two under watch.

        A gradient that is not finite shows in the loss one step later.
        """
        self.restore()
        good = replace(self.state)
        self.check_every = bad_step + self.round + 1
        self.round = self.check_every  # so that no round ends before the bad step is reached
        self.history = {}
        where = NOT_FOUND
        while self.state.step <= bad_step and where == NOT_FOUND:
            if self.state.step >= bad_step - 1:
                tensors = self.parts.loader.batch(self.state.step).tensors()
                where = first_bad_layer(self.parts.task.model, partial(self._loss, *tensors))
                if where != NOT_FOUND and self.state.step < bad_step:
                    where += f" at step {self.state.step}"
            if where == NOT_FOUND:
                self.step()
        self.state = good
        return where

    def _loss(self, *tensors: Tensor | None) -> Tensor:
        return self._parts_of_loss(*tensors)["loss"]

    def save(self) -> None:
        """Write a checkpoint, unless the run has gone wrong: it replaces no good one then."""
        parts = self.parts
        if self.chief and not self.run.recipe_file.exists():
            raise TorchcapsError(f"{self.run.folder} was deleted or moved while it was trained.")
        if self.state.step and self.history:
            self._check_losses(self.state.step - 1)
        weights = checkpoint.tensors_of(parts.task)
        if not all(bool(torch.isfinite(t).all()) for t in weights.values()):
            return  # the next loss will tell
        training = checkpoint.optimiser_tensors(parts.task, parts.optimiser)
        training |= {f"best/{name}": tensor.cpu() for name, tensor in self.best.items()}
        training |= {f"parts/{n}": v.cpu() for n, v in self._over_processes(self.history).items()}
        if self.average:
            training |= {f"ema/{n}": checkpoint.full(t) for n, t in self.average.weights.items()}
        training["rng/cpu"] = torch.get_rng_state()
        if parts.fabric.device.type == "cuda":
            training["rng/cuda"] = torch.cuda.get_rng_state(parts.fabric.device)
        self.state.metrics_bytes = self.run.metrics_bytes()
        self.state.metrics_sum = self.run.metrics_sum(self.state.metrics_bytes)
        if self.chief:
            checkpoint.save(self.run.checkpoints, self.state, weights, training)
        parts.fabric.barrier()

    def restore(self) -> list[str]:
        """Take up the newest whole checkpoint; returns what was wrong with newer ones."""
        parts = self.parts
        self.state, weights, training, problems = checkpoint.load_last(self.run.checkpoints)
        if self.run.metrics_sum(self.state.metrics_bytes) != self.state.metrics_sum:
            problems.append(f"{self.run.metrics_file} is not what this run wrote: curves may lie.")
        checkpoint.restore(parts.task, weights)
        checkpoint.restore_optimiser(parts.task, parts.optimiser.optimizer, training)
        if self.average:
            for name, value in self.average.weights.items():
                value.copy_(checkpoint.like(training[f"ema/{name}"], value))
        device = parts.fabric.device

        def under(folder: str) -> dict[str, Tensor]:
            named = {n.partition("/"): t for n, t in training.items()}
            return {n: t.to(device) for (head, _, n), t in named.items() if head == folder}

        self.best, self.history = under("best"), under("parts")
        torch.set_rng_state(training["rng/cpu"])
        if "rng/cuda" in training and device.type == "cuda":
            torch.cuda.set_rng_state(training["rng/cuda"], device)
        seed_process(self.recipe.seed, parts.fabric.global_rank, self.state.step)
        return problems

    def on_any_process(self, here: bool) -> bool:
        """Whether it is so on any process: what all must do together, all must decide together."""
        fabric = self.parts.fabric
        if fabric.world_size == 1:
            return here
        flag = torch.tensor(float(here), device=fabric.device)
        return float(fabric.all_reduce(flag, reduce_op="sum")) > 0  # pyright: ignore
