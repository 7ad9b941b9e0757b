"""The end of a run: the chosen weights, one look at the test split, the record."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchcaps.data import load as load_data
from torchcaps.data.dataset import Dataset
from torchcaps.train.checkpoint import restore_model, write_atomic
from torchcaps.train.recipe import Recipe
from torchcaps.train.record import append_results, environment, make_record

if TYPE_CHECKING:
    from torchcaps.train.loop import Training


def measure(training: "Training") -> list[dict[str, Any]]:
    """The chosen model on the test split of its own data and of every set in `evaluate`."""
    recipe, parts = training.recipe, training.parts
    results = []
    for name in dict.fromkeys((recipe.data.name, *recipe.evaluate)):
        own = name == recipe.data.name
        data = parts.data if own else _other(recipe, name).to(parts.fabric.device)
        splits = {"test": data.test, **({"val": data.val} if own else {})}
        for split_name, split in splits.items():
            with parts.fabric.autocast():
                numbers = training.objective.evaluate(parts.model, split, recipe.loss)
            results += [
                {
                    "data": name,
                    "split": split_name,
                    "metric": metric,
                    "value": value,
                    "n": len(split),
                }
                for metric, value in numbers.items()
            ]
    return results


def _other(recipe: Recipe, name: str) -> Dataset:
    return load_data(name, recipe.data.root or None, seed=recipe.data.seed)


def finish(training: "Training") -> dict[str, Any]:
    parts, recipe, run = training.parts, training.recipe, training.run
    if training.best:
        restore_model(parts.model, training.best)
    parts.model.eval()
    results = measure(training)
    device = parts.fabric.device
    peak = torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else None
    record = make_record(
        recipe,
        environment(device),
        results,
        parameters=parts.model.num_parameters,
        epochs_trained=training.state.step // parts.loader.steps_per_epoch,
        chosen_epoch=training.state.best_epoch,
        seconds=round(training.state.seconds, 2),
        peak_mb=None if peak is None else round(peak, 1),
        impl="auto",
        data_note=parts.data.note,
    )
    if training.chief:
        parts.model.record = record
        parts.model.save_pretrained(run.model)
        write_atomic(run.record_file, (json.dumps(record, indent=2) + "\n").encode())
        if recipe.record:
            append_results(record, Path("results"))
    return record
