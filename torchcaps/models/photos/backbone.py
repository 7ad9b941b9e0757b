"""Backbones: networks for photographs as feature maps [B,C,H,W], whole or partly frozen."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.errors import TorchcapsError, UsageError, require
from torchcaps.layers.stems import timm_model
from torchcaps.models.photos.efficientnet import HEAD, EfficientNetLite0, own_keys
from torchcaps.models.photos.weights import read_weights
from torchcaps.registry import Registry

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Colors = tuple[float, ...]


@dataclass(frozen=True)
class Source:
    """How to make a backbone, and what its input and output look like."""

    make: Callable[[], nn.Module]
    channels: int
    mean: Colors
    std: Colors
    prefix_tokens: int = 0
    """Tokens before those of patches, in the output of a transformer."""


BACKBONES = Registry[Source]("backbone")


def register_backbone(
    name: str,
    *,
    channels: int,
    mean: Colors = IMAGENET_MEAN,
    std: Colors = IMAGENET_STD,
    prefix_tokens: int = 0,
) -> Callable[[Callable[[], nn.Module]], Callable[[], nn.Module]]:
    """Register a function that makes a network, with the weights that it gives it.

    Its output is a map [B,C,H,W] or [B,H,W,C], or tokens [B,N,C]. Of a classifier of torchvision
    the parts before the pooling are used.

    channels: C; mean, std: normalization of its input; prefix_tokens: tokens before the patches

    >>> @register_backbone("tiny", channels=8)
    ... def tiny():
    ...     return torch.nn.Conv2d(3, 8, 4, 4)
    >>> model = torchcaps.create_model("capsule-head", backbone="tiny", image_size=32)
    >>> model(torch.rand(2, 3, 32, 32)).features.shape
    torch.Size([2, 8, 8, 8])
    >>> BACKBONES.pop("tiny").channels
    8
    """

    def add(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        BACKBONES[name] = Source(make, channels, mean, std, prefix_tokens)
        return make

    return add


BACKBONES["efficientnet-lite0"] = Source(
    EfficientNetLite0, HEAD, EfficientNetLite0.mean, EfficientNetLite0.std
)


def _timm_source(name: str, image_size: int) -> Source:
    timm = require("timm", "timm")
    known = timm.get_pretrained_cfg(name, allow_unregistered=True)
    fixed = {"img_size": image_size} if getattr(known, "fixed_input_size", False) else {}
    network: Any = timm_model(name, num_classes=0, **fixed)
    mean = tuple(getattr(known, "mean", None) or IMAGENET_MEAN)
    std = tuple(getattr(known, "std", None) or IMAGENET_STD)
    prefix = getattr(network, "num_prefix_tokens", 0)
    return Source(lambda: network, network.num_features, mean, std, prefix)


def features_of(network: Any) -> Callable[[Tensor], Tensor]:
    """What gives the feature maps of a network: of timm, of torchvision, or its own output."""
    if hasattr(network, "forward_features"):
        return network.forward_features
    if isinstance(getattr(network, "features", None), nn.Module):
        return network.features
    children = dict(network.named_children())
    if "avgpool" in children and "fc" in children:
        names = list(children)
        return nn.Sequential(*(children[n] for n in names[: names.index("avgpool")]))
    return network


def blocks_of(network: Any) -> list[nn.Module]:
    """The parts of a network in order: its stages, or the blocks of its sequences."""
    if callable(getattr(network, "stages", None)) and not isinstance(network.stages, nn.Module):
        return network.stages()
    parts: list[nn.Module] = []
    for child in network.children():
        inner = isinstance(child, nn.Sequential | nn.ModuleList)
        parts += list(child) if inner else [child]
    return [p for p in parts if any(True for _ in p.parameters())]


class Backbone(nn.Module):
    """images [B,C,H,W] in [0,1] -> feature maps [B,C',H',W']; gray images are repeated

    name: efficientnet-lite0, timm:NAME or a name of `register_backbone`; frozen: all, none, or
    last:N to train the last N parts alone
    """

    letters = "[B,C,H,W] -> [B,C,H,W]"
    mean: Tensor
    std: Tensor

    def __init__(self, name: str, image_size: int, frozen: str = "all"):
        super().__init__()
        timm_name = name.removeprefix("timm:")
        source = _timm_source(timm_name, image_size) if timm_name != name else BACKBONES.find(name)
        self.name, self.frozen = name, frozen
        self.channels, self.prefix_tokens = source.channels, source.prefix_tokens
        self.network = source.make()
        for key, values in (("mean", source.mean), ("std", source.std)):
            self.register_buffer(key, torch.tensor(values)[:, None, None], persistent=False)
        self._features = (features_of(self.network),)  # a tuple: its modules have one name
        self.fixed: list[nn.Module] = []
        self._freeze()

    def _freeze(self) -> None:
        if self.frozen == "none":
            return
        parts = blocks_of(self.network)
        count = 0 if self.frozen == "all" else self._last(len(parts))
        self.network.requires_grad_(False)
        self.fixed = [self.network] if not count else parts[: len(parts) - count]
        for part in parts[len(parts) - count :]:
            part.requires_grad_(True)

    def _last(self, most: int) -> int:
        kind, _, number = self.frozen.partition(":")
        if kind != "last" or not number.isdecimal() or not 1 <= int(number) <= most:
            raise UsageError(
                f"frozen={self.frozen!r}: give all, none, or last:N to train the last N of the "
                f"{most} parts of {self.name}."
            )
        return int(number)

    def train(self, mode: bool = True) -> "Backbone":
        """Frozen parts stay in evaluation mode: their statistics do not change."""
        super().train(mode)
        for part in self.fixed:
            part.eval()
        return self

    def load(self, weights: Any) -> None:
        """Load a file of pretrained weights; its classifier is left out."""
        tensors = read_weights(weights.path)
        try:
            if isinstance(self.network, EfficientNetLite0):
                self.network.load_state_dict(own_keys(tensors))
                return
            own = self.network.state_dict()
            missing = [name for name in own if name not in tensors]
            if missing:
                raise TorchcapsError(f"no weights {missing[0]!r} for {self.name}.")
            self.network.load_state_dict({name: tensors[name] for name in own})
        except (TorchcapsError, RuntimeError) as error:
            reason = str(error).split("\n")[0]
            raise TorchcapsError(f"{weights.path}: {reason}") from None

    def forward(self, images: Tensor) -> Tensor:
        images = images.expand(-1, 3, -1, -1)
        return self.as_map(self._features[0]((images - self.mean) / self.std))

    def as_map(self, features: Tensor) -> Tensor:
        """Maps in any layout, or tokens, as [B,C,H,W]; tokens without a square grid are one row."""
        channels = self.channels
        if features.dim() == 4 and features.shape[1] == channels:
            return features
        if features.dim() == 4 and features.shape[3] == channels:
            return features.permute(0, 3, 1, 2)
        if features.dim() == 3 and features.shape[2] == channels:
            tokens = features[:, self.prefix_tokens :].mT
            side = math.isqrt(tokens.shape[2])
            square = side * side == tokens.shape[2]
            return tokens.unflatten(2, (side, side) if square else (1, -1))
        raise TorchcapsError(
            f"The backbone {self.name} gives {list(features.shape)}; it needs a map or tokens of "
            f"{channels} channels."
        )
