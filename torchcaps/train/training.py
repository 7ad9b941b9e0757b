"""The state of a run, one step of it, and its checkpoints; all else is a function of the step."""

import math
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
from torchcaps.train.objectives import OBJECTIVES
from torchcaps.train.optim import Average, learning_rate
from torchcaps.train.recipe import Recipe
from torchcaps.train.run import Run
from torchcaps.train.setup import own_numbers, set_up


class Training:
    """What a run is at a step, and the way to the next one."""

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
        if not self.any_of_us(len(bad) > 0):
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

    def any_of_us(self, mine: bool) -> bool:
        """Whether it is so on any process: what all must do together, all must decide together."""
        fabric = self.parts.fabric
        if fabric.world_size == 1:
            return mine
        flag = torch.tensor(float(mine), device=fabric.device)
        return float(fabric.all_reduce(flag, reduce_op="sum")) > 0  # pyright: ignore
