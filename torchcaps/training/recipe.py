"""A recipe: one dataclass with the whole run in it, that goes to JSON and comes back."""

import dataclasses
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from torchcaps.errors import TorchcapsError, UsageError, nearest
from torchcaps.models.base import SIZES, ModelConfig
from torchcaps.models.capsnet import CapsNetConfig
from torchcaps.models.registry import config_from_dict
from torchcaps.training.checkpoint import sum_of
from torchcaps.training.tasks import Classify, TaskConfig, task_config
from torchcaps.typed import Between, check, read_object

VERSION = 3
"""Version of the format; a recipe of another version is refused rather than guessed at."""
EXTRA_KEYS = ("version", "sum")
"""Keys of a recipe file beside the fields: the version, and a checksum in the file of a run."""


Seed = Annotated[int, Between(0, 2**31 - 1)]
Amount = Annotated[int, Between(0, 10**9)]
Share = Annotated[float, Between(0, 1)]
Decay = Annotated[float, Between(0, 0.99999)]


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    name: str = "digits"
    """Data set with its options: digits, translated:mnist, folder:photos,size=64."""
    augment: tuple[str, ...] = ()
    """Augmentations in order: crop:4 flip translate:2 affine:10 rotate:180 erase resized-crop
    color-jitter."""
    copies: Annotated[int, Between(0, 100)] = 0
    """Augmented copies of each training image for a frozen backbone, whose features are computed
    once. 0: features of the images alone, or with `augment` anew in every step."""
    root: str = ""
    """Folder of the data sets; default: the platform's cache folder."""
    seed: Seed = 0
    """Seed of the validation split and of generated images; the same for all runs of a table."""
    held_out: Amount = 0
    """Number of validation images; train on the others. 0: the whole validation split."""
    per_class: Amount = 0
    """Training images per class, chosen by the seed of the run. 0: all."""
    cutmix: Share = 0.0
    """Share of training images with CutMix: a rectangle of another image, and its label."""
    balanced: bool = False
    """Sample every class equally often."""


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    kind: Literal["adam", "adamw", "sgd", "rmsprop"] = "adam"
    """Optimizer."""
    lr: Annotated[float, Between(0, 1e30)] = 1e-3
    """Learning rate, scaled by the schedule."""
    weight_decay: Annotated[float, Between(0, 1e4)] = 0.0
    """Weight decay."""
    momentum: Decay = 0.9
    """Momentum of SGD and RMSprop; first beta of Adam."""
    nesterov: bool = False
    """Use Nesterov momentum."""
    beta: Decay = 0.0
    """Decay of squared gradients. 0: 0.999 for Adam, 0.99 for RMSprop."""
    eps: Share = 1e-8
    """Term added to the denominator of Adam and RMSprop."""
    decay_all: bool = True
    """Decay biases and the gains of norms, too."""
    rates: tuple[str, ...] = ()
    """Factors of the learning rate by parameter name: decoder=0.1 encoder.head=3."""
    clip: Annotated[float, Between(0, 1e9)] = 0.0
    """Largest norm of the gradient. 0: no clipping."""
    accumulate: Annotated[int, Between(1, 10**6)] = 1
    """Number of micro-batches of a batch, for models that do not fit."""
    ema: Share = 0.0
    """Decay of an exponential moving average of the weights, used in evaluation. 0: none."""


@dataclass(frozen=True, kw_only=True)
class ScheduleSpec:
    kind: Literal["constant", "cosine", "step", "one_cycle", "exponential"] = "constant"
    """Learning rate schedule."""
    warmup: Share = 0.0
    """Share of the run with linear warmup."""
    milestones: tuple[float, ...] = (0.5, 0.75)
    """Shares of the run after which `step` multiplies the rate by gamma."""
    gamma: Annotated[float, Between(0, 1e3)] = 0.1
    """Factor of `step` and `exponential`."""
    period: Annotated[int, Between(1, 10**9)] = 1000
    """Steps in which `exponential` multiplies the rate by gamma."""
    final: Share = 0.0
    """Final share of the rate for cosine and one_cycle; floor of exponential."""


@dataclass(frozen=True, kw_only=True)
class HardwareSpec:
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    """Kind of device."""
    devices: int = 1
    """Devices per machine."""
    num_nodes: Annotated[int, Between(1, 10**5)] = 1
    """Number of machines."""
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    """Strategy for several devices: a whole model each (ddp) or a shard each (fsdp)."""
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    """Precision of training."""
    compile: Literal["none", "default", "graphs", "auto"] = "none"
    """torch.compile of forward and loss; `graphs`: with CUDA graphs; `auto`: graphs on a GPU."""
    artifacts: str = ""
    """Folder of compiled artifacts: loaded at the start of a run, saved at its end. They are code:
    use a folder that only you write."""
    in_turn: bool = False
    """Train one run at a time on a GPU that several runs share; the others load or evaluate."""
    decode_threads: Annotated[int, Between(0, 512)] = 0
    """Threads that read and decode images on disk. 0: one per core, at most 8."""

    @property
    def processes(self) -> int:
        return self.devices * self.num_nodes


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides a run.

    >>> recipe = torchcaps.Recipe(epochs=3, batch_size=64)
    >>> recipe.data.name, recipe.task.kind
    ('digits', 'classify')
    """

    name: str = "custom"
    """Name of the recipe."""
    paper: str = ""
    """Paper whose table this run fills, with `table` and `row`."""
    table: str = ""
    """Table of the paper."""
    row: str = ""
    """Row of the table."""
    protocol: str = "ours"
    """`ours`: model selection on validation data. Tables mark any other protocol."""
    seed: Seed = 0
    """Seed of the initial weights and the order of images."""
    epochs: Annotated[int, Between(1, 10**6)] = 10
    """Passes over the training images."""
    steps: Amount = 0
    """Number of steps, instead of epochs. 0: by epochs."""
    validate_every: Amount = 0
    """Steps between validations. 0: one epoch."""
    batch_size: Annotated[int, Between(1, 10**6)] = 128
    """Images per step, over all devices."""
    data: DataSpec = field(default_factory=DataSpec)
    model: ModelConfig = field(default_factory=CapsNetConfig)
    task: TaskConfig = field(default_factory=Classify)
    before: str = ""
    """Recipe of the pretraining, trained first unless `start_from` names a run."""
    start_from: str = ""
    """Run or saved model with the initial weights; short: --from."""
    start_partly: bool = False
    """Initialize at random what `start_from` lacks."""
    optimizer: OptimizerSpec = field(
        default_factory=OptimizerSpec, metadata={"digest": "optimiser"}
    )
    schedule: ScheduleSpec = field(default_factory=ScheduleSpec)
    hardware: HardwareSpec = field(default_factory=HardwareSpec)
    target_accuracy: Share = 0.0
    """Stop after the epoch that reaches this validation accuracy. 0: never."""
    until: Literal["end", "fitted"] = "end"
    """Last epoch: the end of the recipe, or earlier the epoch that classifies all training images
    correctly or whose training loss is flat."""
    patience: Amount = 0
    """Stop after so many validations without a better one. 0: never."""
    stop_on: Literal["val", "test"] = "val"
    """Split for model selection and stopping; `test` only to repeat a paper that did so."""
    choose: Literal["best", "loss", "last"] = "best"
    """Epoch to evaluate: best validation metric, lowest validation loss, or last."""
    metrics: tuple[str, ...] = ()
    """Metrics of the final evaluation: linear, accuracy:affnist-like:mnist …"""
    watch: tuple[str, ...] = ()
    """Metrics on validation data during training, about ten times a run."""
    checkpoint_seconds: Annotated[float, Between(0, 1e9)] = 60.0
    """Seconds between checkpoints."""
    track: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ()
    """Experiment trackers that get the metrics, too."""
    record: bool = False
    """Append the results to results/<paper>.jsonl."""
    skip_test: bool = False
    """Evaluate on validation data alone at the end, as trials of a sweep do."""


FREE = (
    "seed", "hardware", "checkpoint_seconds", "track", "record", "start_from",
    "start_partly", "metrics", "watch", "skip_test",
)  # fmt: skip
"""Fields that do not make a run one of another recipe: hardware, bookkeeping, extra metrics."""
NAMES = ("name", "paper", "table", "row", "protocol")
NOT_DIGESTED = frozenset({*FREE, *NAMES, *SIZES})


def to_dict(recipe: Recipe) -> dict[str, Any]:
    values = dataclasses.asdict(recipe)
    values["model"] = {"family": recipe.model.family, **values["model"]}
    values["task"] = {"kind": recipe.task.kind, **values["task"]}
    return {"version": VERSION, **values}


def essence(recipe: Recipe) -> dict[str, Any]:
    """Identity of a recipe: fields that are not at their defaults, but for names, free
    fields, the data's folder and the sizes that the data decides.

    Digests hash this, so its keys, values and defaults never change: a field that was renamed,
    whose default changed or whose values were renamed, names the old ones in its metadata:
    `digest`, `digest_default`, `digest_values`.
    """
    fields = dict(_unusual(recipe).values())
    return {**fields, "family": recipe.model.family, "task_kind": recipe.task.kind}


def changed_fields(recipe: Recipe) -> dict[str, Any]:
    """The fields of `essence` by their names today."""
    return {name: value for name, (_, value) in _unusual(recipe).items()}


def _unusual(config: Any, skip: frozenset[str] = NOT_DIGESTED) -> dict[str, tuple[str, Any]]:
    """Fields that are not at their defaults, as name: (name in a digest, value)."""
    plain, changed = type(config)(), {}
    for f in dataclasses.fields(config):
        value, key = getattr(config, f.name), f.metadata.get("digest", f.name)
        if f.name in skip:
            continue
        if dataclasses.is_dataclass(value):
            inner = _unusual(value, skip - {"name", "seed"} | {"root"})
            changed |= {f"{f.name}.{n}": (f"{key}.{k}", v) for n, (k, v) in inner.items()}
            continue
        renamed = f.metadata.get("digest_values", {})
        value = renamed.get(value, value) if renamed else value
        if value != f.metadata.get("digest_default", getattr(plain, f.name)):
            changed[f.name] = key, list(value) if isinstance(value, tuple) else value
    return changed


def differences(recipe: Recipe, other: Recipe) -> list[str]:
    """The fields in which two recipes differ in essence, as `field=value` of the first."""
    own, others = ({**_unusual(r), **_kinds(r)} for r in (recipe, other))
    names = sorted(n for n in {*own, *others} if own.get(n) != others.get(n))
    return [f"{name}={_value(recipe, name)}" for name in names]


def _kinds(recipe: Recipe) -> dict[str, tuple[str, Any]]:
    return {"model.family": ("", recipe.model.family), "task.kind": ("", recipe.task.kind)}


def replaced(recipe: Recipe, other: Recipe) -> dict[str, Any]:
    """The fields of whatever kind in which a recipe is not like another, with its values."""
    own, others = _flat(to_dict(recipe)), _flat(to_dict(other))
    return {name: value for name, value in own.items() if value != others.get(name)}


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    flat = {}
    for name, value in values.items():
        inner = _flat(value) if isinstance(value, dict) else {}
        flat |= {f"{name}.{key}": v for key, v in inner.items()} if inner else {name: value}
    return flat


def _value(recipe: Any, name: str) -> Any:
    for part in name.split("."):
        recipe = getattr(recipe, part, None)
    return recipe


def with_root(recipe: Recipe, root: str) -> Recipe:
    """The same recipe on data sets of another folder; an empty one changes nothing."""
    return replace(recipe, data=replace(recipe.data, root=root)) if root else recipe


def save(recipe: Recipe, path: Path) -> None:
    path.write_text(json.dumps(to_dict(recipe), indent=2) + "\n")


def load(path: Path) -> Recipe:
    """A recipe from its file; the file of a run must match its checksum."""
    values = read_object(path, "not a readable recipe")
    checksum, recipe = values.pop("sum", None), from_dict(values, str(path))
    if checksum not in (None, sum_of(values)):
        raise TorchcapsError(
            f"{path}: changed since the run wrote it. To train with other fields: --config {path}."
        )
    return recipe


def with_fields(recipe: Recipe, fields: dict[str, Any], source: str = "") -> Recipe:
    """A recipe with fields replaced; a dict replaces some fields of a group.

    source: where the fields come from, for errors

    >>> with_fields(Recipe(), {"epochs": 3, "optimizer": {"lr": 1e-4}}).optimizer.lr
    0.0001
    """
    values = to_dict(recipe)
    for name, value in fields.items():
        if name not in values:
            raise UsageError(f"{source or 'fit'}: unknown field {name!r}. {_hint(recipe, name)}")
        if dataclasses.is_dataclass(value):
            kind = {k: getattr(value, k) for k in ("family", "kind") if hasattr(value, k)}
            value = {**kind, **dataclasses.asdict(value)}  # pyright: ignore
        group = values[name]
        if isinstance(group, dict) and isinstance(value, dict):
            if all(value.get(k) in (None, group.get(k)) for k in ("family", "kind")):
                value = {**group, **value}
        values[name] = value
    return from_dict({**values, "name": recipe.name}, source or "fit")


def _hint(recipe: Recipe, name: str) -> str:
    """The group that a field belongs to, or the nearest name."""
    for group in ("optimizer", "schedule", "hardware", "model", "task"):
        if name in {f.name for f in dataclasses.fields(getattr(recipe, group))}:
            return f"Did you mean {group}={{{name!r}: …}}?"
    return nearest(name, [f.name for f in dataclasses.fields(Recipe)])


def overlaid(recipe: Recipe, path: Path) -> Recipe:
    """A recipe with the fields in a JSON file: all, as in a run's recipe.json, or a few."""
    values = read_object(path, "not a readable JSON file of fields")
    fields = {name: value for name, value in values.items() if name not in (*EXTRA_KEYS, "name")}
    if values.get("version", VERSION) != VERSION:
        raise TorchcapsError(_version(str(path), values["version"]))
    return with_fields(recipe, fields, str(path))


def _version(source: str, version: Any) -> str:
    return f"{source}: a recipe of version {version}; this torchcaps reads version {VERSION}."


def from_dict(values: dict[str, Any], source: str = "recipe") -> Recipe:
    if not isinstance(values, dict) or values.get("version") != VERSION:
        version = values.get("version") if isinstance(values, dict) else None
        raise TorchcapsError(_version(source, version))
    return _build(Recipe, {k: v for k, v in values.items() if k not in EXTRA_KEYS}, source)


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
        built[name] = _value_of(hints[name], value, f"{source}: {name}")
    return kind(**built)


def _value_of(hint: Any, value: Any, where: str) -> Any:
    """A field's value, or a group of fields, from plain values."""
    if hint is ModelConfig:
        if not isinstance(value, dict):
            raise TorchcapsError(f"{where}: {value!r} is not a model.")
        return config_from_dict(value)
    if hint is TaskConfig:
        if not isinstance(value, dict):
            raise TorchcapsError(f"{where}: {value!r} is not a task.")
        fields = {k: v for k, v in value.items() if k != "kind"}
        return _build(task_config(value.get("kind")), fields, where)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _build(hint, value, where)
    return check(hint, value, where)
