"""Models by name: `create_model("capsnet", routing="none")`, `list_models()`."""

import dataclasses
import fnmatch
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from safetensors import SafetensorError
from safetensors.torch import load_file

from torchcaps.errors import Misused, TorchcapsError, nearest
from torchcaps.models.base import CapsuleModel, ModelConfig
from torchcaps.models.heads import drop_classes
from torchcaps.models.zoo import zoo_folder, zoo_names
from torchcaps.typed import check, read_object


@dataclass(frozen=True)
class Entry:
    name: str
    config: ModelConfig
    summary: str


_FAMILIES: dict[str, tuple[type[CapsuleModel], type[ModelConfig]]] = {}
_MODELS: dict[str, Entry] = {}


def register(name: str, model: type[CapsuleModel], config: ModelConfig, summary: str) -> None:
    """Name a configuration of a family; the family itself is known by its first configuration."""
    _FAMILIES.setdefault(config.family, (model, type(config)))
    _MODELS[name] = Entry(name, config, summary)


def models() -> list[Entry]:
    return [_MODELS[name] for name in sorted(_MODELS)]


def list_models(pattern: str = "*", pretrained: bool = False) -> list[str]:
    """Names of models, all or those that a pattern fits: `list_models("caps*")`.

    pretrained: of those whose weights come with torchcaps, for `create_model(…, pretrained=True)`
    """
    return fnmatch.filter(zoo_names() if pretrained else sorted(_MODELS), pattern)


def model_config(name: str, **overrides: Any) -> ModelConfig:
    """The configuration that a name stands for, with fields replaced."""
    if name not in _MODELS:
        raise Misused(f"There is no model {name!r}. {nearest(name, list(_MODELS))}")
    return _replace(_MODELS[name].config, overrides, name)


def create_model(name: str, pretrained: bool = False, **overrides: Any) -> CapsuleModel:
    """A new model: `create_model("capsnet", image_size=40, routing="none")`.

    pretrained: with weights that come with torchcaps, by a name of `list_models(pretrained=True)`;
    of its fields only the number of classes can then be another
    """
    if not pretrained:
        return build(model_config(name, **overrides))
    classes = overrides.pop("num_classes", None)
    if overrides:
        raise Misused(f"Trained weights fit no other {', '.join(sorted(overrides))}.")
    model = from_folder(zoo_folder(name))
    if classes is not None and classes != model.config.num_classes:
        model.reset_classifier(classes)
    return model


def build(config: ModelConfig) -> CapsuleModel:
    kind = _FAMILIES[config.family][0]
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


def _made(kind: Any, config: ModelConfig) -> CapsuleModel:
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
    if not isinstance(family, str) or family not in _FAMILIES:
        raise Misused(
            f"There is no model family {family!r}. {nearest(str(family), list(_FAMILIES))}"
        )
    return _replace(_FAMILIES[family][1](), values, family)


def from_folder(folder: str | Path) -> CapsuleModel:
    """A model that `save_pretrained` wrote (or the hub serves), of whatever family."""
    folder = Path(folder)
    try:
        values = read_object(folder / "config.json")
    except (OSError, ValueError) as error:
        raise TorchcapsError(f"{folder}: no readable config.json ({error}).") from None
    classes: Any = values.pop("classes", [])
    values.pop("preprocessing", None)  # words for people
    model = build(config_from_dict(values))
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise TorchcapsError(f"{folder}: classes in its config.json are not a list of names.")
    model.class_names = tuple(classes)
    try:
        model.load_state_dict(load_file(folder / "model.safetensors"))
    except (OSError, RuntimeError, SafetensorError) as error:
        reason = str(error).split("\n")[0]
        raise TorchcapsError(f"{folder}: no readable model.safetensors ({reason}).") from None
    return model.eval()


def _replace(config: ModelConfig, overrides: dict[str, Any], name: str) -> ModelConfig:
    fields = {f.name for f in dataclasses.fields(config)}
    for key in overrides:
        if key not in fields:
            raise Misused(f"{name!r} has no field {key!r}. {nearest(key, list(fields))}")
    hints = get_type_hints(type(config))
    plain = {k: check(hints[k], v, f"{name}: {k}") for k, v in overrides.items()}
    return dataclasses.replace(config, **plain)
