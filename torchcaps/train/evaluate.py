"""Numbers of a chosen model, taken one way: at the end of a run, by `eval` and by `measure`.

In float32, with tf32 products where the run was not trained in full float32: so the record of a run
and a later look at it have the same arithmetic.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from torchcaps.analysis.measures import Told, prepare, take_all
from torchcaps.analysis.mistakes import summary
from torchcaps.data import Dataset, Split
from torchcaps.data.dataset import named_as, whole
from torchcaps.errors import TorchcapsError
from torchcaps.train.load import data_of, load, other_data, other_files
from torchcaps.train.recipe import Recipe
from torchcaps.train.record import best_device, environment
from torchcaps.train.run import Run
from torchcaps.train.tasks import Task, make_task


@contextmanager
def arithmetic(recipe: Recipe) -> Iterator[None]:
    """The arithmetic of evaluation, whatever the process did before."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    fast = recipe.hardware.precision != "fp32"
    torch.set_float32_matmul_precision("high" if fast else "highest")
    torch.backends.cudnn.allow_tf32 = fast
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def task_lines(task: Task, name: str, data: Dataset, split: str) -> list[dict[str, Any]]:
    """What a task counts on one split, a line a number."""
    chosen: Split = getattr(data, split)
    return [
        {"data": name, "split": split, "metric": metric, "value": value, "n": len(chosen)}
        for metric, value in task.evaluate(chosen).items()
    ]


Module = TypeVar("Module", bound=nn.Module)


def on_device(task: Module, device: torch.device) -> Module:
    """A task on its device; on a GPU, weights of convolutions lie as tensor cores read them."""
    task = task.to(device)
    for part in task.modules() if device.type == "cuda" else ():
        if isinstance(part, nn.Conv2d):  # weights of capsules stay as they are
            part.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    return task


def open_run(folder: Path) -> tuple[Recipe, Task]:
    """A finished run's recipe and its task with the chosen weights, ready to be asked."""
    run = Run.open(folder)
    run.record()  # says so if it is not finished
    recipe = run.recipe()
    task = make_task(load(folder), recipe.task)
    return recipe, on_device(task, best_device()).eval()


Which = Literal["test", "val", "train", "all"]


def evaluate_run(
    folder: Path, data: str = "", split: Which = "test", root: Path | None = None
) -> dict[str, Any]:
    """Numbers of the run's task, by its chosen weights, on one split of any data of its size.

    Classes are matched by name. Of one label an image: also each class, who is taken for whom, and
    the worst mistakes.
    """
    recipe, task = open_run(folder)
    model, name = task.model, data or recipe.data.name
    loaded = data_of(other_data(recipe.data, name), root, draw=recipe.seed)
    if loaded.image_shape != model.config.image_shape:
        raise TorchcapsError(
            f"{name} has images {loaded.image_shape}, the model takes {model.config.image_shape}."
        )
    labelled = type(task).needs_labels
    if labelled and not loaded.classes:
        raise TorchcapsError(f"{name} has no labels: torchcaps predict says what its images show.")
    if labelled and model.class_names:
        loaded = named_as(loaded, model.class_names)
    if split == "train" and loaded.render is not None:
        raise TorchcapsError(
            f"{name}: its training images are drawn afresh; evaluate on val or test."
        )
    part: Split = whole(loaded) if split == "all" else getattr(loaded, split)
    part = part.to(best_device())
    with arithmetic(recipe):
        numbers = task.evaluate(part)
        more = {}
        if labelled and part.labels.ndim == 1 and "logits" in model.provides:
            more = summary(model, part, loaded.classes)
    facts = {"run": str(folder), "recipe": recipe.name, "seed": recipe.seed, "data": name}
    if name == recipe.data.name and other_files(Run(folder).start(), loaded):
        told = f"{name} has other files than when the run began"
        facts["note"] = f"{told}: the run may have learned from some of these images."
    return {**facts, "split": split, "n": len(part), "numbers": numbers, **more}


def measure_run(
    folder: Path,
    texts: list[str],
    root: Path | None = None,
    command: str = "",
    told: Told | None = None,
) -> Iterator[dict[str, Any]]:
    """Measures of a finished run's chosen model: of each a record that can be appended to results,
    when it is taken.
    """
    recipe, task = open_run(folder)
    data = data_of(recipe.data, root, draw=recipe.seed)
    taken = prepare(texts, data, recipe.data.name, root or recipe.data.root or None)
    for measure in taken:
        measure.check(task.model)
    device = best_device()
    facts = {**Run(folder).record(), **environment(device, command)}
    with arithmetic(recipe):
        for lines in take_all(taken, task.model, device, Run(folder).encodings, told):
            yield {**facts, "results": lines}
