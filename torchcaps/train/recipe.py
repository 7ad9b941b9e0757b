"""A recipe: one dataclass with the whole run in it, that goes to JSON and comes back."""

import dataclasses
import json
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_type_hints

from torchcaps.errors import TorchcapsError, nearest
from torchcaps.models.base import ModelConfig
from torchcaps.models.capsnet import CapsNetConfig
from torchcaps.models.registry import config_from_dict
from torchcaps.typed import check

VERSION = 1
"""Of the format; a recipe of another version is refused rather than guessed at."""


@dataclass(frozen=True)
class DataSpec:
    name: str = "digits"
    """A data set, with options: digits, translated:mnist, folder:photos,size=64 …"""
    augment: tuple[str, ...] = ()
    """Augmentations in order: crop:4 flip translate:2 affine:10 color-jitter erase resized-crop."""
    root: str = ""
    """Folder of the data sets; empty: the platform's cache folder."""
    seed: int = 0
    """Of the validation split and of generated images; the same for all seeds of a table."""
    held_out: int = 0
    """Validation images, if fewer than the set's own; the others are trained on. 0: all of them."""
    per_class: int = 0
    """Training images of each class, for few labels; the same ones for a `seed`. 0: all."""
    cutmix: float = 0.0
    """Share of training images that get a rectangle of another, and its label by area."""


@dataclass(frozen=True)
class LossSpec:
    kind: Literal["margin", "spread", "cross_entropy", "binary_cross_entropy"] = "margin"
    _: KW_ONLY
    margin: float = 0.9
    """Of spread."""
    smoothing: float = 0.0
    """Of labels, for cross_entropy: this share goes to all classes alike."""
    target: Literal["pixels", "normalised"] = "pixels"
    """Of masked: pixels, or those less their patch's mean and by its spread."""
    whole: bool = False
    """Of masked: count the patches that were seen too."""
    reconstruction: float = 0.0005
    """Weight of the sum of squared pixel errors, where the model has a decoder."""


@dataclass(frozen=True)
class OptimiserSpec:
    kind: Literal["adam", "adamw", "sgd"] = "adam"
    lr: float = 1e-3
    weight_decay: float = 0.0
    _: KW_ONLY
    momentum: float = 0.9
    """Of SGD; for Adam, its first beta."""
    nesterov: bool = False
    decay_all: bool = True
    """Decay biases and the gains of norms too, not weights alone."""
    clip: float = 0.0
    """Largest norm of the gradient; 0: no clipping."""
    accumulate: int = 1
    """Batches are taken in this many parts, for models too large for the whole."""
    ema: float = 0.0
    """Decay of a running average of the weights, which is then what is evaluated; 0: none."""


@dataclass(frozen=True)
class ScheduleSpec:
    kind: Literal["constant", "cosine", "step", "one_cycle"] = "constant"
    warmup: float = 0.0
    """Share of the run in which the rate rises to its full value."""
    milestones: tuple[float, ...] = (0.5, 0.75)
    """Shares of the run after which `step` multiplies the rate by gamma."""
    gamma: float = 0.1
    final: float = 0.0
    """Share of the full rate that cosine and one_cycle end at."""


@dataclass(frozen=True)
class HardwareSpec:
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    devices: int = 1
    num_nodes: int = 1
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    compile: Literal["none", "default", "graphs", "auto"] = "none"
    """torch.compile of forward and loss; `graphs` adds CUDA graphs; `auto`: that on a GPU."""

    @property
    def processes(self) -> int:
        return self.devices * self.num_nodes


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a run."""

    name: str = "custom"
    paper: str = ""
    """Short name of the paper whose table this fills, with `table` and `row`."""
    table: str = ""
    row: str = ""
    protocol: str = "ours"
    """`ours`: chosen on validation. Anything else is marked in the tables."""
    seed: int = 0
    epochs: int = 10
    batch_size: int = 128
    """Over all devices together."""
    data: DataSpec = field(default_factory=DataSpec)
    model: ModelConfig = field(default_factory=CapsNetConfig)
    objective: Literal["classify", "reconstruct", "masked"] = "classify"
    before: str = ""
    """A recipe that is trained first, unless `start_from` names a run."""
    start_from: str = ""
    """A finished run (or a saved model) whose weights this one begins with; `--from` for short."""
    loss: LossSpec = field(default_factory=LossSpec)
    optimiser: OptimiserSpec = field(default_factory=OptimiserSpec)
    schedule: ScheduleSpec = field(default_factory=ScheduleSpec)
    hardware: HardwareSpec = field(default_factory=HardwareSpec)
    target_accuracy: float = 0.0
    """Stop after the epoch whose validation accuracy reaches this; 0: train to the end."""
    stop_on: Literal["val", "test"] = "val"
    """The split that stops a run and chooses its epoch; `test` only to repeat a paper that did."""
    choose: Literal["best", "last"] = "best"
    """Which epoch's weights are tested: the best on validation, or the last."""
    evaluate: tuple[str, ...] = ()
    """More data sets whose test split the chosen model is tested on."""
    checkpoint_seconds: float = 60.0
    """A checkpoint is written this often, and at the end."""
    tensorboard: bool = False
    record: bool = False
    """Append the results to results/<paper>.jsonl."""


def to_dict(recipe: Recipe) -> dict[str, Any]:
    values = dataclasses.asdict(recipe)
    values["model"] = {"family": recipe.model.family, **values["model"]}
    return {"version": VERSION, **values}


def save(recipe: Recipe, path: Path) -> None:
    path.write_text(json.dumps(to_dict(recipe), indent=2) + "\n")


def load(path: Path) -> Recipe:
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise TorchcapsError(f"{path}: not a readable recipe ({error}).") from None
    return from_dict(values, str(path))


def from_dict(values: dict[str, Any], source: str = "recipe") -> Recipe:
    if not isinstance(values, dict) or values.get("version") != VERSION:
        found = values.get("version") if isinstance(values, dict) else None
        raise TorchcapsError(
            f"{source}: a recipe of version {found}; this torchcaps reads version {VERSION}."
        )
    return _build(Recipe, {k: v for k, v in values.items() if k != "version"}, source)


def _build(kind: type, values: Any, source: str) -> Any:
    """A dataclass from plain values, with every name and type checked."""
    if not isinstance(values, dict):
        raise TorchcapsError(f"{source}: {values!r} is not a group of fields.")
    hints = get_type_hints(kind)
    names = [f.name for f in dataclasses.fields(kind)]
    built = {}
    for name, value in values.items():
        if name not in names:
            raise TorchcapsError(f"{source}: no field {name!r}. {nearest(name, names)}")
        where = f"{source}: {name}"
        if hints[name] is ModelConfig:
            if not isinstance(value, dict):
                raise TorchcapsError(f"{where}: {value!r} is not a model.")
            built[name] = config_from_dict(value)
        elif dataclasses.is_dataclass(hints[name]):
            built[name] = _build(hints[name], value, where)
        else:
            built[name] = check(hints[name], value, where)
    return kind(**built)
