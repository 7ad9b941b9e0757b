"""Size of a model before it is built: parameters, memory, and what to build instead.

A model on the meta device has shapes and no memory, so counting takes milliseconds at any size.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from torchcaps.errors import TorchcapsError
from torchcaps.layers.capsules import RoutedCaps
from torchcaps.models.base import SIZES, ModelConfig
from torchcaps.models.registry import LIMIT, MODELS, build

FREE_SHARE = 0.8
"""Largest share of the free memory that a model may take."""
BYTES, TRAINED_BYTES = 4, 16
"""Bytes per parameter in float32: the weight, and with its gradient and Adam's two moments."""
SHOWN, SMALLER = 3, 10
"""Alternatives that an error names, and how many times smaller than the limit they are."""
CHANGES: tuple[dict[str, Any], ...] = (
    {"grid": 7, "reconstruction": "none"},
    {"transform": "types", "reconstruction": "none"},
    {"decoder": "conv"},
)
"""Fields that keep a model small at any image size; the first must be one of the family's."""
SIDES = (160, 128, 96, 64, 48, 32, 28)
"""Smaller images, of which the largest that fits is advised."""
FIRST = ("capsule-head",)
OTHERS = ("convnet-modern", "mcae-pretrain-small", "sparse-small")
"""Models that stay small with large images."""


@dataclass(frozen=True)
class Size:
    """Parameters of a model, and the layer with the most of them."""

    parameters: int
    layer: str
    """Its name and kind."""
    share: float
    """Its share of the parameters."""
    cause: str
    """What its parameters are."""
    classifies: bool


class _NoValues(TorchFunctionMode):
    """Skip initial values, for which a model on the meta device has no memory.

    These operators would import torch's compiler, which takes a second.
    """

    skipped = (Tensor.normal_, Tensor.uniform_, Tensor.fill_, Tensor.zero_)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func in self.skipped else func(*args, **(kwargs or {}))


def size_of(config: ModelConfig) -> Size | None:
    """Size of the model that `build` would give; None if it needs values.

    >>> size_of(torchcaps.models.registry.model_config("capsnet")).layer
    'primary.conv (Conv2d)'
    """
    whole = replace(config, num_classes=max(1, config.num_classes))
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"), _NoValues():
            model = build(whole)
    except TorchcapsError:  # `build` says which field is wrong
        return None
    own = {
        name: sum(p.numel() for p in module.parameters(recurse=False))
        for name, module in model.named_modules()
    }
    name = max(own, key=lambda key: own[key])
    module, total = model.get_submodule(name), model.num_parameters
    layer = f"{name or 'the model'} ({type(module).__name__})"
    share = own[name] / max(1, total)
    return Size(total, layer, share, _cause(module), "logits" in model.provides)


def _cause(module: nn.Module) -> str:
    """What the parameters of a layer are."""
    if isinstance(module, RoutedCaps):
        sizes = module.sizes
        return f"transforms of {sizes.num_transforms:,} children to {sizes.out_caps:,} parents"
    largest = max(module.parameters(recurse=False), key=Tensor.numel, default=torch.empty(0))
    return f"weights of {' x '.join(f'{n:,}' for n in largest.shape)}"


def check_size(
    name: str,
    config: ModelConfig,
    *,
    limit: float = LIMIT,
    device: torch.device | None = None,
    trained: bool = False,
) -> None:
    """Raise if a model has more than `limit` parameters, or takes most of the free memory.

    limit: 0: check nothing; device: where it will be; trained: count gradients and Adam's moments
    """
    size = size_of(config) if limit else None
    if size is None:
        return
    free = free_memory(device or torch.get_default_device())
    needed = size.parameters * (TRAINED_BYTES if trained else BYTES)
    if size.parameters <= limit and needed <= FREE_SHARE * free:
        return
    classes = f" and {config.num_classes:,} classes" if size.classifies else ""
    memory = f" {in_bytes(free)} are free." if needed > FREE_SHARE * free else ""
    article = "An" if name[0] in "aeiou" else "A"
    lines = [
        f"{article} {name} for {'x'.join(map(str, config.image_shape))} images{classes} would have "
        f"{in_words(size.parameters)} parameters: {in_bytes(BYTES * size.parameters)}, and "
        f"{in_bytes(TRAINED_BYTES * size.parameters)} to train with Adam.{memory}",
        f"{100 * size.share:.0f} % are in its layer {size.layer}: {size.cause}.",
    ]
    most = min(limit / SMALLER, FREE_SHARE * free / TRAINED_BYTES)
    instead = [
        f"  {other}{_written(changes, trained)}: {in_words(count)} parameters"
        for other, changes, count in alternatives(name, config, size.classifies, most)
    ]
    lines += ["These fit:", *instead] if instead else []
    how = "fit(create_model(…, limit=0), data) trains" if trained else "limit=0 builds"
    raise TorchcapsError("\n".join([*lines, f"{how} it all the same."]))


def _written(changes: dict[str, Any], trained: bool) -> str:
    """Fields as arguments, or as the options of a run."""
    if trained and "image_size" in changes:
        return f" on images of size={changes['image_size']}"
    options = (f"--model.{k} {v}" if trained else f"{k}={v!r}" for k, v in changes.items())
    return f" with {(' ' if trained else ', ').join(options)}" if changes else ""


def alternatives(
    name: str, config: ModelConfig, classifies: bool, most: float
) -> list[tuple[str, dict[str, Any], int]]:
    """At most three models with at most `most` parameters: name, changed fields, parameters."""
    builds: list[tuple[str, dict[str, Any], int]] = []
    for other, changes, candidate in _candidates(name, config):
        if "image_size" in changes and builds and "image_size" in builds[-1][1]:
            continue  # a larger image fits
        size = size_of(candidate)
        if size and size.parameters <= most and size.classifies == classifies:
            builds.append((other, changes, size.parameters))
    return builds[:SHOWN]


def _candidates(
    name: str, config: ModelConfig
) -> Iterator[tuple[str, dict[str, Any], ModelConfig]]:
    """What may be built instead, the most advisable first: name, changed fields, configuration."""

    def other_models(names: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any], ModelConfig]]:
        sizes = {n: getattr(config, n) for n in SIZES}
        for other in names:
            if other in MODELS and other != name:
                yield other, {}, replace(MODELS[other].config, **sizes)

    yield from other_models(FIRST)
    known = {f.name for f in fields(config)}
    for changes in CHANGES:
        if next(iter(changes)) in known:
            own = {key: value for key, value in changes.items() if key in known}
            yield name, own, replace(config, **own)
    for side in SIDES if config.image_width in (0, config.image_size) else ():
        if side < config.image_size:
            yield name, {"image_size": side}, replace(config, image_size=side, image_width=0)
    yield from other_models(OTHERS)


def free_memory(device: torch.device) -> float:
    """Bytes that are free on a device; infinite if the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return float("inf")
    try:
        text = Path("/proc/meminfo").read_text()
        return 1024.0 * int(text.partition("MemAvailable:")[2].split()[0])
    except (OSError, IndexError, ValueError):  # another system: the memory that is there
        names = getattr(os, "sysconf_names", {})
        if not {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= set(names):
            return float("inf")
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def in_words(count: float) -> str:
    """A count in words.

    >>> in_words(8_848_000_000), in_words(4_400_000), in_words(12_000)
    ('8.8 billion', '4.4 million', '12,000')
    """
    for size, word in ((1e9, "billion"), (1e6, "million")):
        if count >= size:
            return f"{count / size:,.1f} {word}"
    return f"{count:,.0f}"


def in_bytes(count: float) -> str:
    return f"{count / 1e9:,.0f} GB" if count >= 1e10 else f"{count / 1e9:.1f} GB"
