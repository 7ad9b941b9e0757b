"""The jobs of a sweep: train a trial, and run the best one again with another seed."""

import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchcaps.errors import Interrupted, TorchcapsError
from torchcaps.escape import Console
from torchcaps.papers.pretraining import pretrained
from torchcaps.sweeps.folder import EARLY, Trial, best_of
from torchcaps.training.recipe import Recipe, from_dict
from torchcaps.training.run import Run, claimed, first_process


def train_trial(*, recipe: dict[str, Any], folder: str, in_turn: bool, console: Console) -> None:
    """Train a trial to its end or until it is stopped early, and write what came of it."""
    wanted, run, began = _here(from_dict(recipe), in_turn), Run(Path(folder)), time.monotonic()
    with claimed(run.folder, wanted, console.print):
        trial = Trial.read(run.folder)
        if trial.ended:
            return
        state, error = "finished", ""
        try:
            if _early(run):
                raise Interrupted(folder)
            _train(wanted, run, console)
        except Interrupted:
            if not _early(run):  # a signal, or the whole sweep stops: it will be resumed
                raise
            state = "stopped early"
        except Exception as failure:
            if not isinstance(failure, TorchcapsError):
                console.print(traceback.format_exc(), markup=False, highlight=False)
            first = str(failure).strip().split("\n")[0]
            state, error = "failed", first or type(failure).__name__
        if wanted.hardware.processes > 1 and not first_process():
            return
        lines = run.metrics if run.metrics_file.exists() else []
        value, epoch = best_of(wanted, lines)
        if state == "finished" and value is None:
            state, error = "failed", "it has no validation value"
        seconds = round(trial.seconds + time.monotonic() - began, 1)
        replace(trial, state=state, value=value, epoch=epoch, seconds=seconds, error=error).write()


def train_final(*, recipe: dict[str, Any], folder: str, in_turn: bool, console: Console) -> None:
    """Train the best recipe with another seed, and evaluate it on the test split."""
    wanted, run = _here(from_dict(recipe), in_turn), Run(Path(folder))
    with claimed(run.folder, wanted, console.print):
        _train(wanted, run, console)


def _here(recipe: Recipe, in_turn: bool) -> Recipe:
    """The recipe on this machine: on a GPU with several runs one trains at a time."""
    import torch

    if not torch.cuda.is_available() or recipe.hardware.processes > 1 or not in_turn:
        return recipe
    torch.compiler.reset()  # it gives up after eight compilations of one function
    return replace(recipe, hardware=replace(recipe.hardware, in_turn=True))


def _early(run: Run) -> bool:
    return run.stop_file.exists() and run.stop_file.read_text() == EARLY


def _train(recipe: Recipe, run: Run, console: Console) -> None:
    from torchcaps.training.loop import resume, start  # Lightning takes a second to import

    if run.recipe_file.exists():
        resume(run.folder, console)
    else:
        start(pretrained(recipe, console), run.folder, console)
