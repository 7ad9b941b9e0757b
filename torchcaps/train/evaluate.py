"""A finished run on any data set of its image size."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from torchcaps.errors import TorchcapsError
from torchcaps.train.load import data_of, load
from torchcaps.train.objectives import OBJECTIVES
from torchcaps.train.run import Run


def evaluate_run(
    folder: Path,
    data: str | None = None,
    split: Literal["train", "val", "test"] = "test",
    root: Path | None = None,
) -> dict[str, Any]:
    """Numbers of the run's objective, by its chosen weights, on one split."""
    run = Run.open(folder)
    recipe = run.recipe()
    model = load(folder)
    name = data or recipe.data.name
    spec = recipe.data
    if name != spec.name:
        spec = replace(spec, name=name, held_out=0, per_class=0)
    loaded = data_of(spec, root)
    if loaded.image_shape != model.config.image_shape:
        raise TorchcapsError(
            f"{name} has images {loaded.image_shape}, the model takes {model.config.image_shape}."
        )
    if split == "train" and loaded.render is not None:
        raise TorchcapsError(
            f"{name}: its training images are drawn afresh; evaluate on val or test."
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loaded = loaded.to(device)
    chosen = {"train": loaded.train, "val": loaded.val, "test": loaded.test}[split]
    objective = OBJECTIVES[recipe.objective]
    numbers = objective.numbers(model.to(device), loaded, chosen, recipe.loss)
    return {"run": str(folder), "data": name, "split": split, "n": len(chosen), "numbers": numbers}
