"""Models by name: `create_model("capsnet", routing="none")`, `list_models()`."""

import dataclasses
import fnmatch
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from torchcaps.data.value_range import Range, as_range
from torchcaps.errors import TorchcapsError, UsageError, nearest
from torchcaps.models.base import CONFIG_VERSION, Model, ModelConfig
from torchcaps.models.heads import drop_classes
from torchcaps.models.hub import pretrained_folder, pretrained_names
from torchcaps.registry import Registry
from torchcaps.typed import check, check_bounds, read_object


@dataclass(frozen=True)
class Entry:
    name: str
    config: ModelConfig
    summary: str
    listed: bool
    """True if `list_models()` shows it; others are rows of tables."""


LIMIT = 500e6
"""Most parameters of a model that is built unasked; no registered model has a tenth of it."""
MOST_LEFT_OUT = 10**8
"""Weights of a classifier and a decoder that a model without classes does not save."""
FAMILIES = Registry[tuple[type[Model], type[ModelConfig]]]("model family")
MODELS = Registry[Entry]("model", "models")


def register(
    name: str, model: type[Model], config: ModelConfig, summary: str, *, listed: bool = True
) -> None:
    """Name a configuration of a family; the family itself is known by its first configuration.

    listed: whether `list_models()` shows it; a row of a paper's table can be built by its name
    """
    FAMILIES.setdefault(config.family, (model, type(config)))
    MODELS[name] = Entry(name, config, summary, listed)


def models() -> list[Entry]:
    return [MODELS[name] for name in sorted(MODELS)]


def list_models(pattern: str = "*", *, pretrained: bool = False, every: bool = False) -> list[str]:
    """Names of models that fit a pattern: `list_models("caps*")`.

    pretrained: those with weights, as ARCHITECTURE.TAG; every: also variants that fill a row of a
    paper's table

    >>> list_models("inverted*")
    ['inverted-resnet', 'inverted-simple', 'inverted-small']
    """
    names = [n for n, entry in sorted(MODELS.items()) if entry.listed or every]
    return fnmatch.filter(pretrained_names() if pretrained else names, pattern)


def model_config(name: str, **overrides: Any) -> ModelConfig:
    """The configuration that a name stands for, with fields replaced."""
    return _replace(MODELS.find(name).config, overrides, name)


def create_model(
    name: str, *, pretrained: bool = False, limit: float = LIMIT, **overrides: Any
) -> Model:
    """A model by its name, with fields of its configuration replaced.

    A name is an architecture; `ARCHITECTURE.TAG` names weights that come with torchcaps.

    pretrained: load weights; of the fields only the number of classes can then differ. Models on a
    backbone (`capsule-head`) load the backbone's weights, which torchcaps finds on this machine
    limit: raise an error before building a model with more parameters, or one that takes most of
    the free memory; 0 builds it all the same

    >>> torchcaps.create_model("capsnet-small", image_size=40, routing="uniform").num_parameters > 0
    True
    >>> torchcaps.create_model("capsnet-small.digits", pretrained=True).class_names[:2]
    ('0', '1')
    """
    architecture, _, tag = name.partition(".")
    if pretrained and not tag and hasattr(model_config(architecture), "weights"):
        pretrained, overrides = False, {"weights": "auto", **overrides}
    if not pretrained:
        from torchcaps.models.size import check_size  # which builds models without memory

        config = model_config(architecture, **overrides)
        check_size(architecture, config, limit=limit)
        model = build(config)
        if remark := model.load_weights():
            print(remark, file=sys.stderr)
        return model
    classes = overrides.pop("num_classes", None)
    if overrides:
        raise UsageError(f"Pretrained weights fit no other {', '.join(sorted(overrides))}.")
    model = from_folder(pretrained_folder(name))
    if classes is not None and classes != model.config.num_classes:
        model.reset_classifier(classes)
    return model


def build(config: ModelConfig) -> Model:
    check_bounds(config, f"{config.family}: ")
    kind = FAMILIES[config.family][0]
    if config.image_width not in (0, config.image_size) and not config.oblong:
        raise TorchcapsError(
            f"A {config.family} takes square images, not {config.image_size}x{config.image_width}."
        )
    if config.num_classes:
        return _made(kind, config)
    model = _made(kind, dataclasses.replace(config, num_classes=1))
    if "logits" in model.provides:
        drop_classes(model)
    return model


def _made(kind: Any, config: ModelConfig) -> Model:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Initializing zero-element")  # a layer of nothing
            return kind(config)
    except (
        RuntimeError, ValueError, TypeError, ArithmeticError, IndexError, MemoryError, UserWarning,
    ) as error:  # fmt: skip
        reason = str(error).split("\n")[0]
        raise TorchcapsError(
            f"A {config.family} cannot be made with these fields ({reason})."
        ) from None


def config_from_dict(values: dict[str, Any]) -> ModelConfig:
    """The reverse of {"family": …, **asdict(config)}, as JSON gives it back."""
    values = dict(values)
    family = values.pop("family", None)
    return _replace(FAMILIES.find(family)[1](), values, family)


def from_folder(folder: str | Path) -> Model:
    """A model that `save_pretrained` wrote (or the hub serves), of whatever family.

    >>> torchcaps.create_model("capsnet-small").save_pretrained("saved")
    >>> from_folder("saved").config.family
    'capsnet'
    """
    folder = Path(folder)
    values = read_object(folder / "config.json", "not readable")
    classes: Any = values.pop("classes", [])
    if values.pop("version", CONFIG_VERSION) != CONFIG_VERSION:
        raise TorchcapsError(f"{folder}: its config.json has another version than this torchcaps.")
    values.pop("preprocessing", None)  # words for people
    value_range: Any = values.pop("range", None)
    temperature: Any = values.pop("temperature", None)
    config = config_from_dict(values)
    check_bounds(config, f"{folder}: ")
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise TorchcapsError(f"{folder}: classes in its config.json are not a list of names.")
    if temperature is not None and not _is_temperature(temperature):
        raise TorchcapsError(f"{folder}: temperature in its config.json is no positive number.")
    try:
        weights = load_file(folder / "model.safetensors")
        model = build_for(config, weights, f"{folder}: model.safetensors")
        model.load_state_dict(weights)
    except (OSError, RuntimeError, SafetensorError) as error:
        reason = str(error).split("\n")[0]
        raise TorchcapsError(f"{folder}: no readable model.safetensors ({reason}).") from None
    if classes and "logits" in model.provides and len(classes) != config.num_classes:
        raise TorchcapsError(
            f"{folder}: its config.json names {len(classes)} classes, and the model has "
            f"{config.num_classes}."
        )
    model.class_names = tuple(classes)
    model.temperature = temperature
    model.value_range = None if value_range is None else _as_range(value_range, folder)
    return model.eval()


def _is_temperature(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e6


def _as_range(value: Any, folder: Path) -> Range:
    try:
        return as_range(value if isinstance(value, list) else "")
    except UsageError as error:
        raise TorchcapsError(f"{folder}: its config.json has {error}") from None


def build_for(config: ModelConfig, weights: dict[str, Tensor], where: str) -> Model:
    """A model for these weights, once they are known to fit and to be finite.

    The sizes are compared before memory is allocated: a configuration cannot ask for more than
    its file of weights has.
    """
    whole = dataclasses.replace(config, num_classes=max(1, config.num_classes))
    try:
        with torch.device("meta"):
            expected = {name: tensor.shape for name, tensor in build(whole).state_dict().items()}
    except TorchcapsError:  # `build` says which field is wrong; a plug-in may read values
        return build(config)
    missing = [name for name in expected if name not in weights]
    if missing and config.num_classes:
        raise TorchcapsError(f"{where}: no weights {missing[0]!r}.")
    if sum(expected[name].numel() for name in missing) > MOST_LEFT_OUT:
        raise TorchcapsError(f"{where}: the configuration asks for many more weights.")
    for name, tensor in weights.items():
        if name not in expected:
            raise TorchcapsError(f"{where}: unknown weights {name!r}.")
        if tensor.shape != expected[name]:
            raise TorchcapsError(
                f"{where}: {name} has the shape {list(tensor.shape)}, the configuration "
                f"{list(expected[name])}."
            )
        if not bool(torch.isfinite(tensor).all()):
            raise TorchcapsError(f"{where}: {name} has values that are not finite.")
    return build(config)


def _replace(config: ModelConfig, overrides: dict[str, Any], name: str) -> ModelConfig:
    fields = {f.name for f in dataclasses.fields(config)}
    for key in overrides:
        if key not in fields:
            raise UsageError(f"{name!r} has no field {key!r}. {nearest(key, list(fields))}")
    hints = get_type_hints(type(config))
    plain = {k: check(hints[k], v, f"{name}: {k}") for k, v in overrides.items()}
    return dataclasses.replace(config, **plain)
