"""Two tasks that only tests know, and runs of them, one after the other, each in a folder of its
name: `python -m tests.training.tasks.toys FOLDER NAME …`.

`counting` keeps state by batches: sums of halves and quarters, which float32 holds exactly, so that
parts of a batch, processes and resumes must agree in every bit. `two-calls` asks two methods of its
model, neither of which is forward.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from torchcaps.models.registry import model_config
from torchcaps.training.loop import resume, start
from torchcaps.training.recipe import DataSpec, HardwareSpec, OptimizerSpec, Recipe
from torchcaps.training.tasks import Task, TaskConfig, register_task

CAPSNET = {"channels": 8, "num_types": 2, "pose_dim": 4, "class_pose_dim": 4, "hidden": (16,)}


@dataclass(frozen=True)
class Counting(TaskConfig):
    every: int = 3


@register_task("counting", Counting)
class CountingTask(Task):
    def __init__(self, model, config):
        super().__init__(model, config)
        for name, size in (("clock", ()), ("bright", (4,)), ("boost", (4,))):
            self.register_buffer(name, torch.zeros(size))

    def forward(self, batch):
        output = self.model(batch.images)
        loss = (output.reconstruction - batch.images).square().mean()
        quarters = batch.images.unfold(2, 14, 14).unfold(3, 14, 14).mean((1, 4, 5)).flatten(1)
        bright = (quarters > 0.15).float().mean(0)
        return {"loss": loss, "ink": batch.images.mean(), "bright": bright}

    def after_step(self, step, parts):
        assert step == int(self.clock)
        self.clock += 1
        self.bright.mul_(0.5).add_(parts["bright"])
        if int(self.clock) % self.config.every == 0:
            self.boost += (self.bright < 0.5).float()


@dataclass(frozen=True)
class TwoCalls(TaskConfig):
    pass


@register_task("two-calls", TwoCalls)
class TwoCallsTask(Task):
    def forward(self, batch):
        output = self.model.encode(batch.images)
        drawn = self.model.decode(output.capsules, batch.labels)
        error = (drawn - batch.images).square().sum((1, 2, 3)).mean()
        length = (output.scores.sum(1) - 1).square().mean()
        return {"loss": length + 0.01 * error, "length": length, "error": error}


def recipe(task: TaskConfig, accumulate: int = 1, **hardware) -> Recipe:
    return Recipe(
        name="toy", task=task, batch_size=64, steps=40, validate_every=20,
        data=DataSpec(name="digits", augment=("translate:2",)),
        model=model_config("capsnet", **CAPSNET),
        optimizer=OptimizerSpec(kind="sgd", lr=0.01, accumulate=accumulate, ema=0.9),
        hardware=HardwareSpec(accelerator="cpu", **hardware), checkpoint_seconds=0,
    )  # fmt: skip


PAIR = {"devices": 2, "strategy": "ddp"}
RUNS = {
    "counting": recipe(Counting()),
    "counting-ddp": recipe(Counting(), **PAIR),
    "two-calls-ddp-fp32": recipe(TwoCalls(), **PAIR),
    "two-calls-ddp-bf16": recipe(TwoCalls(), **PAIR, precision="bf16"),
    "two-calls-fsdp-fp32": recipe(TwoCalls(), devices=2, strategy="fsdp"),
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[2:]:
        folder = Path(sys.argv[1]) / name
        if (folder / "recipe.json").exists():
            resume(folder)
        else:
            start(RUNS[name], folder)
