"""The state of a run, one step of it, and its checkpoints; all else is a function of the step."""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from torchcaps.data import Batch
from torchcaps.errors import TorchcapsError
from torchcaps.escape import Console
from torchcaps.training import checkpoint
from torchcaps.training.checkpoint import State
from torchcaps.training.compile_cache import load_artifacts, save_artifacts
from torchcaps.training.failures import NOT_FOUND, first_bad_layer
from torchcaps.training.optim import Average, learning_rate
from torchcaps.training.recipe import Recipe
from torchcaps.training.registry import digest
from torchcaps.training.run import Run
from torchcaps.training.setup import RunContext, build_task, seed_process
from torchcaps.training.tasks import Task


class Training:
    """The state of a run at a step, and the way to the next one."""

    def __init__(
        self, recipe: Recipe, context: RunContext, run: Run, console: Console | None = None
    ):
        """recipe and context: as `set_up` returns them"""
        self.recipe, self.context, self.run = recipe, context, run
        self.state = State()
        self.chief = context.fabric.is_global_zero
        self.console = console if self.chief else None
        per_epoch = context.loader.steps_per_epoch
        self.total = recipe.steps or recipe.epochs * per_epoch
        self.round = min(recipe.validate_every or per_epoch, self.total)
        """Updates between two validations."""
        task, ema = context.task, recipe.optimizer.ema
        self.average = Average(task.model, ema) if ema else None
        self.best: dict[str, Tensor] = {}
        self.history: dict[str, Tensor] = {}
        """Every scalar loss term at each update of the present round."""
        self.compute = self._losses
        mode = recipe.hardware.compile
        if mode == "auto":
            mode = "graphs" if context.fabric.device.type == "cuda" else "none"
        self.artifacts: Path | None = None
        """Folder of what torch.compile makes of this recipe, if it is kept."""
        if mode != "none":
            self._load_artifacts()
            graphs = "reduce-overhead" if mode == "graphs" else None
            self.compute = torch.compile(self._losses, mode=graphs)
        # reading the loss waits for the GPU, so there it is checked once in a while
        self.check_every = 1 if context.fabric.device.type == "cpu" else 50

    def _load_artifacts(self) -> None:
        folder, device = self.recipe.hardware.artifacts, self.context.fabric.device
        if not folder:
            return
        self.artifacts = Path(folder) / digest(self.recipe)
        try:
            load_artifacts(self.artifacts, device)
        except TorchcapsError as error:  # compile, and replace them at the end
            if self.console:
                self.console.print(f"{error} Compiling.", style="yellow", markup=False)

    def save_artifacts(self) -> None:
        """Keep what torch.compile made, for runs that differ only in seed."""
        if self.artifacts is not None and self.chief:
            save_artifacts(self.artifacts, self.context.fabric.device)

    def _losses(self, *tensors: Tensor | None) -> dict[str, Tensor]:
        """The loss terms of a batch, from its tensors: what torch.compile compiles."""
        # alone on its device, the task is called as it is: fewer wrappers for torch.compile
        alone = self.context.fabric.world_size == 1 and self.recipe.hardware.strategy != "fsdp"
        module = self.context.task if alone else self.context.module
        with self.context.fabric.autocast():
            return module(Batch(*tensors))  # pyright: ignore[reportArgumentType]

    def step(self) -> None:
        """One update from batch number `state.step`."""
        context, optimizer, step = self.context, self.recipe.optimizer, self.state.step
        rate = learning_rate(self.recipe.schedule, optimizer.lr, step, self.total)
        for group in context.optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        batch = context.loader.batch(step)
        share = math.ceil(len(batch) / optimizer.accumulate)
        context.optimizer.zero_grad(set_to_none=True)
        averaged: dict[str, Tensor] = {}
        for start in range(0, len(batch), share):
            part = batch[slice(start, start + share)]
            last = start + share >= len(batch)
            with context.fabric.no_backward_sync(context.module, enabled=not last):
                losses = self.compute(*part.tensors())
                weight = len(part) / len(batch)
                context.fabric.backward(losses["loss"] * weight)
            for name, value in losses.items():
                value = value.detach().float()
                value = value if weight == 1 else value * weight
                averaged[name] = averaged[name] + value if name in averaged else value
        self._remember(averaged)
        position = step % self.round
        if (step + 1) % self.check_every == 0 or position == self.round - 1:
            self._check_losses(step)
        if optimizer.clip:
            context.fabric.clip_gradients(
                context.module, context.optimizer, max_norm=optimizer.clip, error_if_nonfinite=False
            )
        context.optimizer.step()
        if type(context.task).after_step is not Task.after_step:
            context.task.after_step(step, self._over_processes(averaged))
        if self.average:
            self.average.update(step)
        self.state.step += 1

    def _remember(self, averaged: dict[str, Tensor]) -> None:
        scalars = {name: value for name, value in averaged.items() if value.ndim == 0}
        if not self.history:
            device = self.context.fabric.device
            self.history = {n: torch.zeros(self.round, device=device) for n in scalars}
        for name, value in scalars.items():
            self.history[name][self.state.step % self.round] = value

    def _over_processes(self, averaged: dict[str, Tensor]) -> dict[str, Tensor]:
        """Copies that a task may keep: the memory of a CUDA graph is written again."""
        copies = {name: value.clone() for name, value in averaged.items()}
        fabric = self.context.fabric
        if fabric.world_size == 1:
            return copies
        return {n: fabric.all_reduce(t, reduce_op="mean") for n, t in copies.items()}  # pyright: ignore

    def round_means(self) -> dict[str, float]:
        """The mean of every loss term over the updates of the round that ends here."""
        done = (self.state.step - 1) % self.round + 1
        names = sorted(self.history, key=lambda name: (name != "loss", name))
        means = {name: self.history[name][:done].mean() for name in names}
        return {n: float(self.context.fabric.all_reduce(t)) for n, t in means.items()}  # pyright: ignore

    @contextmanager
    def evaluated(self) -> Iterator[Task]:
        """The task as it is evaluated: averaged weights if there are any, whole on this device."""
        task = self.context.task
        averaged = self.average.swapped() if self.average else nullcontext()
        with averaged:
            if self.recipe.hardware.strategy == "fsdp":
                with torch.random.fork_rng(devices=[]):
                    task = build_task(self.recipe).to(self.context.fabric.device)
                checkpoint.restore(task, checkpoint.tensors_of(self.context.task, cpu=False))
            task.eval()
            yield task
        self.context.task.train()

    def _check_losses(self, step: int) -> None:
        first = step - step % self.round
        losses = self.history["loss"]
        bad = (~torch.isfinite(losses[: step - first + 1])).nonzero()
        if not self.on_any_process(len(bad) > 0):
            return
        bad_step = first + int(bad[0]) if len(bad) else step
        value = float(losses[bad_step - first])
        where = "one of several processes; run it on one device to see the layer"
        if self.context.fabric.world_size == 1:
            where = self._replay(bad_step)
        if self.chief:  # weights that gave this loss are of no use to anybody
            checkpoint.forget_from(self.run.checkpoints, bad_step)
        good = next((int(p.name) for p in checkpoint.numbered(self.run.checkpoints)), 0)
        raise TorchcapsError(
            f"The loss became {value} at step {bad_step}, first seen in {where}.\n"
            f"The last good checkpoint is step {good}. Resume with a smaller learning rate: "
            f"torchcaps resume {self.run.folder} --optimizer.lr {self.recipe.optimizer.lr / 10:g}"
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
                tensors = self.context.loader.batch(self.state.step).tensors()
                where = first_bad_layer(self.context.task.model, partial(self._loss, *tensors))
                if where != NOT_FOUND and self.state.step < bad_step:
                    where += f" at step {self.state.step}"
            if where == NOT_FOUND:
                self.step()
        self.state = good
        return where

    def _loss(self, *tensors: Tensor | None) -> Tensor:
        return self._losses(*tensors)["loss"]

    def save(self) -> None:
        """Write a checkpoint, unless the run has gone wrong: it replaces no good one then."""
        context = self.context
        if self.chief and not self.run.recipe_file.exists():
            raise TorchcapsError(f"{self.run.folder} was deleted or moved while it was trained.")
        if self.state.step and self.history:
            self._check_losses(self.state.step - 1)
        weights = checkpoint.tensors_of(context.task)
        if not all(bool(torch.isfinite(t).all()) for t in weights.values()):
            return  # the next loss will tell
        training = checkpoint.optimizer_tensors(context.task, context.optimizer)
        training |= {f"best/{name}": tensor.cpu() for name, tensor in self.best.items()}
        training |= {f"losses/{n}": v.cpu() for n, v in self._over_processes(self.history).items()}
        if self.average:
            training |= {f"ema/{n}": checkpoint.full(t) for n, t in self.average.weights.items()}
        training["rng/cpu"] = torch.get_rng_state()
        if context.fabric.device.type == "cuda":
            training["rng/cuda"] = torch.cuda.get_rng_state(context.fabric.device)
        self.state.metrics_bytes = self.run.metrics_bytes()
        self.state.metrics_sum = self.run.metrics_sum(self.state.metrics_bytes)
        if self.chief:
            checkpoint.save(self.run.checkpoints, self.state, weights, training)
        context.fabric.barrier()

    def restore(self) -> list[str]:
        """Load the newest valid checkpoint; return what was wrong with newer ones."""
        context = self.context
        self.state, weights, training, problems = checkpoint.load_last(self.run.checkpoints)
        if "rng/cpu" not in training:
            raise TorchcapsError(
                f"{self.run.folder} was finished and keeps no optimizer state, but record.json is "
                "gone: restore it, or train a new run."
            )
        if self.run.metrics_sum(self.state.metrics_bytes) != self.state.metrics_sum:
            problems.append(
                f"{self.run.metrics_file} was changed since this run wrote it; curves may be wrong."
            )
        checkpoint.restore(context.task, weights)
        checkpoint.restore_optimizer(context.task, context.optimizer.optimizer, training)
        if self.average:
            for name, value in self.average.weights.items():
                value.copy_(checkpoint.like(training[f"ema/{name}"], value))
        device = context.fabric.device

        def under(folder: str) -> dict[str, Tensor]:
            named = {n.partition("/"): t for n, t in training.items()}
            return {n: t.to(device) for (head, _, n), t in named.items() if head == folder}

        self.best, self.history = under("best"), under("losses")
        torch.set_rng_state(training["rng/cpu"])
        if "rng/cuda" in training and device.type == "cuda":
            torch.cuda.set_rng_state(training["rng/cuda"], device)
        seed_process(self.recipe.seed, context.fabric.global_rank, self.state.step)
        return problems

    def on_any_process(self, here: bool) -> bool:
        """True if a flag is set on any process, so that all processes decide alike."""
        fabric = self.context.fabric
        if fabric.world_size == 1:
            return here
        flag = torch.tensor(float(here), device=fabric.device)
        return float(fabric.all_reduce(flag, reduce_op="sum")) > 0  # pyright: ignore
