"""The end of a run: the chosen weights, one look at the test split, the record."""

import json
from pathlib import Path
from typing import Any

import torch

from torchcaps.analysis.measures import take_all
from torchcaps.data.source import sha256_file
from torchcaps.errors import TorchcapsError
from torchcaps.train import checkpoint
from torchcaps.train.evaluate import arithmetic, on_device, task_lines
from torchcaps.train.progress import MeasureProgress
from torchcaps.train.recipe import to_dict
from torchcaps.train.record import environment
from torchcaps.train.results import append_record
from torchcaps.train.run import Run
from torchcaps.train.setup import build_task
from torchcaps.train.tasks import Task
from torchcaps.train.training import Training


def chosen_task(training: Training) -> Task:
    """A fresh task with the chosen weights, whole on this device whatever the strategy was."""
    task = on_device(build_task(training.recipe), training.parts.fabric.device)
    checkpoint.restore(task.model, training.best)
    return task.eval()


def all_lines(training: Training, task: Task) -> list[dict[str, Any]]:
    """The task on the test split of the run's data, validation beside it, and every measure."""
    recipe, parts = training.recipe, training.parts
    with arithmetic(recipe):
        lines = [
            line
            for split in ("test", "val")
            for line in task_lines(task, recipe.data.name, parts.data, split)
        ]
        cache = training.run.encodings if training.chief else None
        with MeasureProgress(training.console) as told:
            found = take_all(parts.measures, task.model, parts.fabric.device, cache, told)
            lines += [line for some in found for line in some]
    return lines


def _provenance(begun: dict[str, Any], ended: dict[str, Any]) -> dict[str, Any]:
    """Command, commit and device of the start; those of a resume beside them where they differ."""
    if "command" not in begun:
        return {**begun, **ended}
    changed = {k: v for k, v in ended.items() if k != "date" and v != begun.get(k)}
    return {**begun, **({"resumed": changed} if changed else {})}


def _source(folder: str) -> dict[str, Any]:
    """The run whose weights this one began with, as far as it is still there."""
    try:
        found = Run.open(folder).record()
    except TorchcapsError:
        return {"from": folder}
    recipe = found["recipe"]
    return {"recipe": recipe["name"], "seed": recipe["seed"], "commit": found["commit"]}


def finish(training: Training, command: str = "") -> dict[str, Any]:
    parts, recipe, run = training.parts, training.recipe, training.run
    task = chosen_task(training)
    results = all_lines(training, task)
    device = parts.fabric.device
    peak = torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else None
    source = {"pretrained": _source(recipe.start_from)} if recipe.start_from else {}
    record = {
        "recipe": to_dict(recipe),
        **_provenance(run.start(), environment(device, command)),
        "parameters": task.model.num_parameters,
        "epochs_trained": training.state.step // parts.loader.steps_per_epoch,
        "steps_trained": training.state.step,
        "chosen_epoch": training.state.best_epoch,
        "seconds": round(training.state.seconds, 2),
        "peak_mb": None if peak is None else round(peak, 1),
        "data_note": parts.data.note,
        **source,
        "results": results,
    }
    if training.chief:
        task.model.record, task.model.class_names = record, parts.data.classes
        _write(run, task, record, recipe.record)
    parts.fabric.barrier()  # what comes next may read the run
    return record


def _write(run: Run, task: Task, record: dict[str, Any], recorded: bool) -> None:
    """The record comes last: a run that has one has all else."""
    task.model.save_pretrained(run.model)
    record["weights_sha256"] = sha256_file(run.model / "model.safetensors")
    if recorded:
        append_record(record, Path("results"))
    text = json.dumps(record, indent=2) + "\n"
    checkpoint.write_atomic(run.record_file, text.encode())
