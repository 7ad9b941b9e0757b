"""`torchcaps.load`: a trained model from a run folder, a saved folder or the hub."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from torchcaps.data import Dataset
from torchcaps.data import load as load_data
from torchcaps.data.dataset import hold_fewer, keep_per_class
from torchcaps.data.source import sha256_file
from torchcaps.errors import TorchcapsError, nearest
from torchcaps.models import CapsuleModel, from_folder
from torchcaps.models.registry import build
from torchcaps.models.zoo import PREFIX, zoo_folder
from torchcaps.train import checkpoint
from torchcaps.train.recipe import DataSpec
from torchcaps.train.run import Run
from torchcaps.typed import read_object

Which = Literal["chosen", "last"]


def data_of(spec: DataSpec, root: str | Path | None = None, *, draw: int = 0) -> Dataset:
    """What a recipe trains on, split as it says; from `root`, or the folder that it names.

    draw: which labels are kept where they are few; the seed of a run
    """
    data = load_data(spec.name, root or spec.root or None, seed=spec.seed)
    data = hold_fewer(data, spec.held_out) if spec.held_out else data
    return keep_per_class(data, spec.per_class, draw) if spec.per_class else data


def other_data(spec: DataSpec, name: str) -> DataSpec:
    """The specification of another set that a run is evaluated on: whole, with the same seed."""
    return spec if name == spec.name else replace(spec, name=name, held_out=0, per_class=0)


def other_files(begun: dict[str, Any], data: Dataset) -> bool:
    """Whether a folder of images has changed since a run began, whose start says what it held."""
    return begun.get("files", data.files) != data.files


def load(source: str | Path, which: Which = "chosen") -> CapsuleModel:
    """A run folder, a folder that `save_pretrained` wrote, a model of the zoo ("zoo:capsnet"), or a
    hub id such as "name/capsnet".

    which: of a run, the weights that validation chose (so far), or the last that were saved
    """
    if str(source).startswith(PREFIX):
        folder = zoo_folder(str(source))
        model = from_folder(folder)
        model.record = read_object(folder / "record.json")
        return model
    folder = Path(source).expanduser()
    if (folder / "recipe.json").exists():
        return _of_run(Run(folder), which).eval()
    if (folder / "config.json").exists():
        return from_folder(folder).eval()
    if folder.exists() or str(source).count("/") != 1:
        raise TorchcapsError(
            f"{source}: neither a run, nor a saved model, nor a hub id (name/model)."
        )
    try:
        return CapsuleModel.from_pretrained(str(source)).eval()
    except OSError:
        beside = [p.name for p in folder.parent.iterdir()] if folder.parent.is_dir() else []
        near = nearest(folder.name, beside, most=0)
        said = f"{source}: there is no such folder, and the hub gives no such model."
        raise TorchcapsError(f"{said} {near}".strip()) from None


def _of_run(run: Run, which: Which) -> CapsuleModel:
    if which == "chosen" and run.record_file.exists():
        record = run.record()
        weights = run.model / "model.safetensors"
        wanted = record.get("weights_sha256", "")
        if wanted and weights.is_file() and sha256_file(weights) != wanted:
            raise TorchcapsError(
                f"{weights} is damaged: its sha256 is not that of the run's record."
            )
        model = from_folder(run.model)
        model.record = record
        return model
    model = build(run.recipe().model)
    _, weights, training, _ = checkpoint.load_last(run.checkpoints)
    under = {"chosen": ("best/",), "last": ("ema/",)}[which]
    found = {n.partition("/")[2]: t for n, t in training.items() if n.startswith(under)}
    if which == "chosen" and not found:
        raise TorchcapsError(f"{run.folder} has not validated yet: load(run, which='last').")
    last = {n.removeprefix("model."): t for n, t in weights.items() if n.startswith("model.")}
    checkpoint.restore(model, {**last, **found} if which == "last" else found)
    return model
