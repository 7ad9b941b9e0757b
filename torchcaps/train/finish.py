"""The end of a run: the chosen weights, one look at the test split, the record."""

import json
from pathlib import Path
from typing import Any

import torch

from torchcaps.errors import TorchcapsError
from torchcaps.models import CapsuleModel
from torchcaps.models.registry import build
from torchcaps.train.checkpoint import restore_model, write_atomic
from torchcaps.train.recipe import to_dict
from torchcaps.train.record import append_results, environment
from torchcaps.train.run import Run
from torchcaps.train.training import Training


def chosen_model(training: Training) -> CapsuleModel:
    """A fresh model with the chosen weights, whole on this device whatever the strategy was."""
    model = build(training.recipe.model).to(training.parts.fabric.device)
    restore_model(model, training.best)
    return model.eval()


def measure(training: Training, model: CapsuleModel) -> list[dict[str, Any]]:
    """The test split of the run's data and of every set in `evaluate`; validation beside it."""
    recipe, parts = training.recipe, training.parts
    splits = [
        (recipe.data.name, "test", parts.data.test),
        (recipe.data.name, "val", parts.data.val),
    ]
    splits += [(name, "test", test) for name, test in parts.others.items()]
    results = []
    for name, split_name, split in splits:
        with parts.fabric.autocast():
            there = split.to(parts.fabric.device)
            numbers = training.objective.numbers(model, parts.data, there, recipe.loss)
        results += [
            {"data": name, "split": split_name, "metric": metric, "value": value, "n": len(split)}
            for metric, value in numbers.items()
        ]
    return results


def _provenance(begun: dict[str, Any], ended: dict[str, Any]) -> dict[str, Any]:
    """Command, commit and device of the start; those of a resume beside them where they differ."""
    if not begun:
        return ended
    changed = {k: v for k, v in ended.items() if k != "date" and v != begun[k]}
    return {**begun, **({"resumed": changed} if changed else {})}


def _source(folder: str) -> dict[str, Any]:
    """The run whose weights this one began with, as far as it is still there."""
    try:
        found = Run.open(folder).record()
    except TorchcapsError:
        return {"from": folder}
    recipe = found["recipe"]
    return {"recipe": recipe["name"], "seed": recipe["seed"], "commit": found["commit"]}


def finish(training: Training) -> dict[str, Any]:
    parts, recipe, run = training.parts, training.recipe, training.run
    model = chosen_model(training)
    results = measure(training, model)
    device = parts.fabric.device
    peak = torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else None
    source = {"pretrained": _source(recipe.start_from)} if recipe.start_from else {}
    record = {
        "recipe": to_dict(recipe),
        **_provenance(run.start(), environment(device)),
        "parameters": model.num_parameters,
        "epochs_trained": training.state.step // parts.loader.steps_per_epoch,
        "chosen_epoch": training.state.best_epoch,
        "seconds": round(training.state.seconds, 2),
        "peak_mb": None if peak is None else round(peak, 1),
        "impl": "auto",
        "data_note": parts.data.note,
        **source,
        "results": results,
    }
    if training.chief:
        model.record = record
        model.save_pretrained(run.model)
        if recipe.record:
            append_results(record, Path("results"))
        write_atomic(run.record_file, (json.dumps(record, indent=2) + "\n").encode())
    parts.fabric.barrier()  # what comes next may read the run
    return record
