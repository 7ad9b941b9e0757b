"""`torchcaps.load`: a trained model from a run folder, a saved folder or the hub."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from torchcaps.data import Dataset
from torchcaps.data import load as load_data
from torchcaps.data.dataset import hold_fewer, keep_per_class
from torchcaps.data.source import sha256_file
from torchcaps.data.spec import parse
from torchcaps.data.value_range import Range, as_text
from torchcaps.errors import TorchcapsError, nearest
from torchcaps.models import Model, from_folder
from torchcaps.models.hub import is_hub_id, pretrained_folder, pretrained_names
from torchcaps.models.registry import build_for
from torchcaps.training import checkpoint
from torchcaps.training.recipe import DataSpec
from torchcaps.training.run import Run
from torchcaps.typed import read_object

Which = Literal["chosen", "last"]


def data_of(spec: DataSpec, root: str | Path | None = None, *, label_seed: int = 0) -> Dataset:
    """The data set of a recipe in its splits, read from `root` or the folder that it names.

    label_seed: which labels are kept if they are few; the seed of a run
    """
    data = load_data(spec.name, root or spec.root or None, seed=spec.seed)
    data = hold_fewer(data, spec.held_out) if spec.held_out else data
    return keep_per_class(data, spec.per_class, label_seed) if spec.per_class else data


def other_data(spec: DataSpec, name: str) -> DataSpec:
    """The specification of another data set to evaluate a run on: whole, with the same seed."""
    return spec if name == spec.name else replace(spec, name=name, held_out=0, per_class=0)


def folder_of(name: str) -> str:
    """The absolute path of an image folder by the name of its data set; empty for other sets."""
    kind, path, _ = parse(name)
    return str(Path(path).expanduser().resolve()) if kind == "folder" and path else ""


def in_range(name: str, value_range: Range | None) -> str:
    """The name of an image folder with the range of a model, unless it has one of its own."""
    if value_range is None or not folder_of(name) or "range" in parse(name)[2]:
        return name
    return f"{name},range={as_text(value_range)}"


def other_files(start: dict[str, Any], data: Dataset) -> bool:
    """True if an image folder has changed since the start of a run."""
    return start.get("files", data.files) != data.files


def load(source: str | Path, which: Which = "chosen") -> Model:
    """A run folder, a folder that `save_pretrained` wrote, the name of weights that come with
    torchcaps (`capsnet-small.digits`), or a hub id such as "name/capsnet".

    which: of a run, the weights that validation chose (so far), or the last that were saved

    >>> torchcaps.load("capsnet-small.digits").config.family
    'capsnet'
    """
    folder = Path(source).expanduser()
    if str(source) in pretrained_names() and not os.path.exists(folder):
        folder = pretrained_folder(str(source))
        model = from_folder(folder)
        model.record = read_object(folder / "record.json")
        return model
    if os.path.exists(folder / "recipe.json"):
        return _of_run(Run(folder), which).eval()
    if os.path.exists(folder / "config.json"):
        return from_folder(folder).eval()
    if os.path.exists(folder) or not is_hub_id(str(source)):
        name = str(source) if str(source).isprintable() else repr(str(source))
        raise TorchcapsError(
            f"{name}: not a run, a saved model, a pretrained model or a hub id (name/model). "
            f"{nearest(str(source), pretrained_names(), most=0)} "
            "See torchcaps list models --pretrained."
        )
    try:
        return Model.from_pretrained(str(source)).eval()
    except OSError:
        beside = [p.name for p in folder.parent.iterdir()] if folder.parent.is_dir() else []
        near = nearest(folder.name, beside, most=0)
        raise TorchcapsError(
            f"{source}: no such folder, and the hub has no such model. {near}"
        ) from None


def _of_run(run: Run, which: Which) -> Model:
    run.require_plugins()
    if which == "chosen" and run.finished:
        record = run.record()
        weights = run.model_folder / "model.safetensors"
        expected = record.get("weights_sha256", "")
        if expected and weights.is_file() and sha256_file(weights) != expected:
            raise TorchcapsError(
                f"{weights} is damaged: its sha256 is not that of the run's record."
            )
        model = from_folder(run.model_folder)
        model.record = record
        return model
    config = run.recipe().model
    _, weights, training, _ = checkpoint.load_last(run.checkpoints)
    under = {"chosen": ("best/",), "last": ("ema/",)}[which]
    chosen = {n.partition("/")[2]: t for n, t in training.items() if n.startswith(under)}
    if which == "chosen" and not chosen:
        raise TorchcapsError(f"{run.folder} has not validated yet: load(run, which='last').")
    last = {n.removeprefix("model."): t for n, t in weights.items() if n.startswith("model.")}
    tensors = {**last, **chosen} if which == "last" else chosen
    model = build_for(config, tensors, f"{run.checkpoints}")
    checkpoint.restore(model, tensors)
    return model
