"""The end of a run: evaluate the chosen weights once on the test split, write the record."""

import json
from contextlib import suppress
from typing import Any

import torch

from torchcaps.data.source import sha256_file
from torchcaps.errors import TorchcapsError
from torchcaps.metrics.base import evaluate_all
from torchcaps.metrics.calibration import learned_temperature
from torchcaps.training import checkpoint
from torchcaps.training.evaluate import task_results
from torchcaps.training.hardware import evaluation_precision, on_device
from torchcaps.training.progress import MetricProgress
from torchcaps.training.provenance import environment
from torchcaps.training.recipe import to_dict
from torchcaps.training.run import Run
from torchcaps.training.setup import build_task
from torchcaps.training.state import Training
from torchcaps.training.task import Task


def chosen_task(training: Training) -> Task:
    """A new task with the chosen weights, whole on this device whatever the strategy was."""
    task = on_device(build_task(training.recipe), training.context.fabric.device)
    checkpoint.restore(task.model, training.best)
    return task.eval()


def all_results(training: Training, task: Task) -> list[dict[str, Any]]:
    """The task's numbers on the test and validation splits, and every metric.

    A number that the task computes too, on the whole split, is not repeated.
    """
    recipe, context = training.recipe, training.context
    with evaluation_precision(recipe.hardware):
        results = [
            result
            for split in (("val",) if recipe.skip_test else ("test", "val"))
            for result in task_results(task, recipe.data.name, context.data, split)
        ]
        cache = training.run.encodings if training.chief else None
        with MetricProgress(training.console) as progress:
            device = context.fabric.device
            metrics = [] if recipe.skip_test else context.metrics
            for part in evaluate_all(metrics, task.model, device, cache, progress):
                known = [_without_value(line) for line in results]
                results += [line for line in part if _without_value(line) not in known]
    return results


def _without_value(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name not in ("value", "n")}


def _provenance(start: dict[str, Any], end: dict[str, Any]) -> dict[str, Any]:
    """Command, commit and device of the start; those of a resume beside them if they differ."""
    if "command" not in start:
        return {**start, **end}
    changed = {k: v for k, v in end.items() if k != "date" and v != start.get(k)}
    return {**start, **({"resumed": changed} if changed else {})}


def _source(folder: str) -> dict[str, Any]:
    """The run whose weights this one started from, as far as it still exists."""
    try:
        record = Run.open(folder).record()
    except TorchcapsError:
        return {"from": folder}
    recipe = record["recipe"]
    return {"recipe": recipe["name"], "seed": recipe["seed"], "commit": record["commit"]}


def finish(training: Training, command: str = "") -> dict[str, Any]:
    """Evaluate the chosen weights and write model/ and record.json. Returns the record."""
    context, recipe, run = training.context, training.recipe, training.run
    task = chosen_task(training)
    if type(task).needs_labels:
        with evaluation_precision(recipe.hardware):
            task.model.temperature = learned_temperature(task.model, context.data.val)
    results = all_results(training, task)
    device = context.fabric.device
    peak = torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else None
    source = {"pretrained": _source(recipe.start_from)} if recipe.start_from else {}
    record = {
        "recipe": to_dict(recipe),
        **_provenance(run.start(), environment(device, command)),
        "parameters": task.model.num_parameters,
        "epochs_trained": training.state.step // context.loader.steps_per_epoch,
        "steps_trained": training.state.step,
        "chosen_epoch": training.state.best_epoch,
        "seconds": round(training.state.seconds, 2),
        "peak_mb": None if peak is None else round(peak, 1),
        "data_note": context.data.note,
        **source,
        "results": results,
    }
    if training.chief:
        task.model.record, task.model.class_names = record, context.data.classes
        task.model.value_range = context.data.value_range
        _write(run, task, record)
    context.fabric.barrier()  # what comes next may read the run
    return record


def _write(run: Run, task: Task, record: dict[str, Any]) -> None:
    """Write the model, then the record: a run with a record has everything else."""
    task.model.save_pretrained(run.model_folder)
    record["weights_sha256"] = sha256_file(run.model_folder / "model.safetensors")
    text = json.dumps(record, indent=2) + "\n"
    checkpoint.write_atomic(run.record_file, text.encode())
    with suppress(TorchcapsError, OSError):  # the run is whole; `runs clean` can do it later
        checkpoint.drop_training_state(run.checkpoints)
