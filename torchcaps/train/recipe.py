"""A recipe: one dataclass with the whole run in it, that goes to JSON and comes back."""

import dataclasses
import json
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

from torchcaps.errors import TorchcapsError, nearest
from torchcaps.models.base import SIZES, ModelConfig
from torchcaps.models.capsnet import CapsNetConfig
from torchcaps.models.registry import config_from_dict
from torchcaps.train.checkpoint import sum_of
from torchcaps.train.tasks import Classify, TaskConfig, task_config
from torchcaps.typed import check, read_object

VERSION = 2
"""Version of the format; a recipe of another version is refused rather than guessed at."""
BESIDE = ("version", "sum")
"""What a file of a recipe has beside the fields: the version, and a sum where a run wrote it."""


@dataclass(frozen=True)
class DataSpec:
    name: str = "digits"
    """A data set, with options: digits, translated:mnist, folder:photos,size=64 …"""
    augment: tuple[str, ...] = ()
    """Augmentations in order: crop:4 flip translate:2 affine:10 color-jitter erase resized-crop."""
    root: str = ""
    """The folder of the data sets; empty: the platform's cache folder."""
    seed: int = 0
    """The seed of the validation split and of generated images; the same for all seeds of a table.
    """
    held_out: int = 0
    """Validation images, if fewer than the set's own; the others are trained on. 0: all of them."""
    per_class: int = 0
    """Training images of each class, for few labels; each seed of a run draws its own. 0: all."""
    cutmix: float = 0.0
    """The share of training images that get a rectangle of another, and its label by area."""


@dataclass(frozen=True)
class OptimiserSpec:
    kind: Literal["adam", "adamw", "sgd", "rmsprop"] = "adam"
    """The optimiser."""
    lr: float = 1e-3
    """The full learning rate, which the schedule scales."""
    weight_decay: float = 0.0
    """The weight decay."""
    _: KW_ONLY
    momentum: float = 0.9
    """The momentum of SGD and RMSprop; Adam's first beta."""
    nesterov: bool = False
    """Whether SGD's momentum is Nesterov's."""
    beta: float = 0.0
    """The decay of squared gradients; 0: 0.999 for Adam, 0.99 for RMSprop."""
    eps: float = 1e-8
    """What Adam and RMSprop add to the root of squared gradients."""
    decay_all: bool = True
    """Whether biases and the gains of norms decay too, not weights alone."""
    rates: tuple[str, ...] = ()
    """Groups of parameters with a rate of their own, as NAME=FACTOR: decoder=0.1 encoder.head=3."""
    clip: float = 0.0
    """The largest norm of the gradient; 0: no clipping."""
    accumulate: int = 1
    """The number of parts that a batch is taken in, for models too large for the whole."""
    ema: float = 0.0
    """The decay of a running average of the weights, which is then what is evaluated; 0: none."""


@dataclass(frozen=True)
class ScheduleSpec:
    kind: Literal["constant", "cosine", "step", "one_cycle", "exponential"] = "constant"
    """How the learning rate changes over the run."""
    warmup: float = 0.0
    """The share of the run in which the rate rises to its full value."""
    milestones: tuple[float, ...] = (0.5, 0.75)
    """Shares of the run after which `step` multiplies the rate by gamma."""
    gamma: float = 0.1
    """The factor of `step`, and of `exponential` in every `period`."""
    period: int = 1000
    """Updates in which `exponential` multiplies the rate by gamma, a little in each."""
    final: float = 0.0
    """The share of the full rate that cosine and one_cycle end at, and exponential's floor."""


@dataclass(frozen=True)
class HardwareSpec:
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    """The kind of device."""
    devices: int = 1
    """Devices of each machine."""
    num_nodes: int = 1
    """Machines."""
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    """How several devices share the work: a model each, or each a part of it."""
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    """The arithmetic of training."""
    compile: Literal["none", "default", "graphs", "auto"] = "none"
    """torch.compile of forward and loss; `graphs` adds CUDA graphs; `auto`: that on a GPU."""
    in_turn: bool = False
    """Whether runs on one device that all say so take their steps one run at a time, while the
    others load, compile or are measured."""

    @property
    def processes(self) -> int:
        return self.devices * self.num_nodes


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a run."""

    name: str = "custom"
    """The recipe's name."""
    paper: str = ""
    """The short name of the paper whose table this fills, with `table` and `row`."""
    table: str = ""
    """The table that this fills."""
    row: str = ""
    """The row of that table."""
    protocol: str = "ours"
    """`ours`: chosen on validation. Anything else is marked in the tables."""
    seed: int = 0
    """The seed of the weights and of the order of images."""
    epochs: int = 10
    """Passes over the training images."""
    steps: int = 0
    """Updates of the run, in place of epochs; 0: as many as the epochs have."""
    validate_every: int = 0
    """Updates between two looks at the validation images; 0: once an epoch."""
    batch_size: int = 128
    """Images of an update, over all devices together."""
    data: DataSpec = field(default_factory=DataSpec)
    model: ModelConfig = field(default_factory=CapsNetConfig)
    task: TaskConfig = field(default_factory=Classify)
    before: str = ""
    """A recipe that is trained first, unless `start_from` names a run."""
    start_from: str = ""
    """A finished run (or a saved model) whose weights this one begins with; `--from` for short."""
    start_partly: bool = False
    """Whether parts of the model that `start_from` lacks may begin anew."""
    optimiser: OptimiserSpec = field(default_factory=OptimiserSpec)
    schedule: ScheduleSpec = field(default_factory=ScheduleSpec)
    hardware: HardwareSpec = field(default_factory=HardwareSpec)
    target_accuracy: float = 0.0
    """The run stops after the epoch whose validation accuracy reaches this; 0: it does not."""
    stop_on: Literal["val", "test"] = "val"
    """The split that stops a run and chooses its epoch; `test` only to repeat a paper that did."""
    choose: Literal["best", "loss", "last"] = "best"
    """Which epoch's weights are tested: the best on validation by the task's metric, the one with
    the lowest validation loss, or the last."""
    measures: tuple[str, ...] = ()
    """What is measured of the chosen model: linear, accuracy:affnist-like:mnist …"""
    watch: tuple[str, ...] = ()
    """What is measured on the validation images while training, some ten times a run."""
    checkpoint_seconds: float = 60.0
    """Seconds between two checkpoints; there is one at the end too."""
    tensorboard: bool = False
    """Whether metrics go to TensorBoard as well."""
    record: bool = False
    """Whether the results are appended to results/<paper>.jsonl."""


FREE = (
    "seed", "hardware", "checkpoint_seconds", "tensorboard", "record", "start_from",
    "start_partly", "measures", "watch",
)  # fmt: skip
"""Fields that do not make a run another recipe's: where it was run, and what was looked at."""
NAMES = ("name", "paper", "table", "row", "protocol")


def to_dict(recipe: Recipe) -> dict[str, Any]:
    values = dataclasses.asdict(recipe)
    values["model"] = {"family": recipe.model.family, **values["model"]}
    values["task"] = {"kind": recipe.task.kind, **values["task"]}
    return {"version": VERSION, **values}


def essence(recipe: Recipe) -> dict[str, Any]:
    """What makes a recipe this one: fields that are not at their defaults, but for names, free
    fields, the data's folder and the sizes that the data decides.
    """
    plain = Recipe(data=DataSpec(), model=type(recipe.model)(), task=type(recipe.task)())
    values, usual = to_dict(recipe), to_dict(plain)
    values["data"].pop("root")
    found = _unusual(values, usual, {*FREE, *NAMES, *SIZES, "version"})
    return {**found, "family": recipe.model.family, "task_kind": recipe.task.kind}


def _unusual(values: dict[str, Any], usual: dict[str, Any], skip: set[str]) -> dict[str, Any]:
    found = {}
    for name, value in values.items():
        if name in skip:
            continue
        if isinstance(value, dict):
            inner = _unusual(value, usual[name], skip - {"name", "seed"})
            found |= {f"{name}.{key}": v for key, v in inner.items()}
        elif value != usual[name]:
            found[name] = list(value) if isinstance(value, tuple) else value
    return found


def differences(recipe: Recipe, other: Recipe) -> list[str]:
    """The fields in which two recipes differ in essence, as `field=value` of the first."""
    own, others = essence(recipe), essence(other)
    names = sorted(n for n in {*own, *others} if own.get(n) != others.get(n))
    return [f"{name}={_value(recipe, name)}" for name in names]


def replaced(recipe: Recipe, other: Recipe) -> dict[str, Any]:
    """The fields of whatever kind in which a recipe is not like another, with its values."""
    own, others = _flat(to_dict(recipe)), _flat(to_dict(other))
    return {name: value for name, value in own.items() if value != others.get(name)}


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in values.items():
        inner = _flat(value) if isinstance(value, dict) else {}
        found |= {f"{name}.{key}": v for key, v in inner.items()} if inner else {name: value}
    return found


def _value(recipe: Recipe, name: str) -> Any:
    names = {"family": "model.family", "task_kind": "task.kind"}
    for part in names.get(name, name).split("."):
        recipe = getattr(recipe, part, None)  # pyright: ignore
    return recipe


def with_root(recipe: Recipe, root: str) -> Recipe:
    """The same recipe on data sets of another folder; an empty one changes nothing."""
    return replace(recipe, data=replace(recipe.data, root=root)) if root else recipe


def save(recipe: Recipe, path: Path) -> None:
    path.write_text(json.dumps(to_dict(recipe), indent=2) + "\n")


def load(path: Path) -> Recipe:
    """A recipe from its file; one that a run wrote has a sum, and is as it was."""
    try:
        values = read_object(path)
    except (OSError, ValueError) as error:
        raise TorchcapsError(f"{path}: not a readable recipe ({error}).") from None
    told, recipe = values.pop("sum", None), from_dict(values, str(path))
    if told not in (None, sum_of(values)):
        raise TorchcapsError(
            f"{path}: changed since it was written. For a run with other fields: --config {path}."
        )
    return recipe


def overlaid(recipe: Recipe, path: Path) -> Recipe:
    """A recipe with the fields that a JSON file names: all, as a run's recipe.json, or a few."""
    try:
        values = read_object(path)
    except (OSError, ValueError) as error:
        raise TorchcapsError(f"{path}: not a readable file of fields ({error}).") from None
    whole = to_dict(recipe)
    for name, value in values.items():
        kinds = {k: value.get(k) for k in ("family", "kind")} if isinstance(value, dict) else {}
        held = whole.get(name)
        same = isinstance(held, dict) and all(v in (None, held.get(k)) for k, v in kinds.items())
        whole[name] = {**held, **value} if same and isinstance(value, dict) else value  # pyright: ignore
    return from_dict({**whole, "name": recipe.name}, str(path))


def from_dict(values: dict[str, Any], source: str = "recipe") -> Recipe:
    if not isinstance(values, dict) or values.get("version") != VERSION:
        version = values.get("version") if isinstance(values, dict) else None
        raise TorchcapsError(
            f"{source}: a recipe of version {version}; this torchcaps reads version {VERSION}."
        )
    return _build(Recipe, {k: v for k, v in values.items() if k not in BESIDE}, source)


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
        elif hints[name] is TaskConfig:
            if not isinstance(value, dict):
                raise TorchcapsError(f"{where}: {value!r} is not a task.")
            fields = {k: v for k, v in value.items() if k != "kind"}
            built[name] = _build(task_config(value.get("kind")), fields, where)
        elif dataclasses.is_dataclass(hints[name]):
            built[name] = _build(hints[name], value, where)
        else:
            built[name] = check(hints[name], value, where)
    return kind(**built)
