"""EfficientNet-Lite0, and the names of its weights in other packages.

Inverted bottlenecks (Tan and Le 2019) without squeeze-and-excitation, with ReLU6; convolutions are
padded as in TensorFlow, where the published weights were trained.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.errors import TorchcapsError

STAGES = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
)  # fmt: skip
"""Of each stage: expansion, channels, blocks, stride, kernel size."""
STEM, HEAD = 32, 1280
"""Channels before and after the stages."""


class SameConv(nn.Conv2d):
    """Convolution to ceil(side / stride); an odd pixel of padding goes right and below."""

    def __init__(self, in_channels: int, channels: int, kernel: int, stride: int, groups: int = 1):
        super().__init__(in_channels, channels, kernel, stride, groups=groups, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        if stride == 1:  # the usual symmetric padding, without a copy
            return F.conv2d(input, self.weight, None, 1, kernel // 2, 1, self.groups)
        sides: list[int] = []
        for side in (input.shape[3], input.shape[2]):
            total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
            sides += [total // 2, total - total // 2]
        return F.conv2d(F.pad(input, sides), self.weight, None, stride, 0, 1, self.groups)


def _conv_norm(
    in_channels: int, channels: int, kernel: int = 1, stride: int = 1, groups: int = 1,
    relu: bool = True,
) -> nn.Sequential:  # fmt: skip
    conv = SameConv(in_channels, channels, kernel, stride, groups)
    norm = nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)
    return nn.Sequential(conv, norm, *([nn.ReLU6()] if relu else []))


class Bottleneck(nn.Module):
    """Expand the channels, convolve each alone, project; added to the input if the shape stays."""

    def __init__(self, in_channels: int, channels: int, expansion: int, stride: int, kernel: int):
        super().__init__()
        width = in_channels * expansion
        self.expand = _conv_norm(in_channels, width) if expansion > 1 else None
        self.depthwise = _conv_norm(width, width, kernel, stride, width)
        self.project = _conv_norm(width, channels, relu=False)
        self.residual = stride == 1 and in_channels == channels

    def forward(self, features: Tensor) -> Tensor:
        wide = features if self.expand is None else self.expand(features)
        out = self.project(self.depthwise(wide))
        return features + out if self.residual else out


class EfficientNetLite0(nn.Module):
    """images [B,3,H,W] -> features [B,1280,H/32,W/32], or logits with `num_classes`

    >>> EfficientNetLite0()(torch.rand(1, 3, 64, 64)).shape
    torch.Size([1, 1280, 2, 2])
    """

    mean, std = (0.5,) * 3, (0.5,) * 3
    """Normalization of its published weights."""

    def __init__(self, num_classes: int = 0):
        super().__init__()
        self.stem = _conv_norm(3, STEM, 3, 2)
        self.blocks = nn.ModuleList()
        width = STEM
        for expansion, channels, count, stride, kernel in STAGES:
            for number in range(count):
                first = stride if number == 0 else 1
                self.blocks.append(Bottleneck(width, channels, expansion, first, kernel))
                width = channels
        self.head = _conv_norm(width, HEAD)
        self.classifier = nn.Linear(HEAD, num_classes) if num_classes else None
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, images: Tensor) -> Tensor:
        features = self.stem(images)
        for block in self.blocks:
            features = block(features)
        features = self.head(features)
        return features if self.classifier is None else self.classifier(features.mean((2, 3)))

    def stages(self) -> list[nn.Module]:
        """Parts in order, for a backbone that is frozen up to one of them."""
        ends = iter(self.blocks)
        stages = [nn.ModuleList(next(ends) for _ in range(count)) for _, _, count, _, _ in STAGES]
        return [self.stem, *stages, self.head]


def _timm_names() -> Iterator[tuple[str, str]]:
    yield from (("stem.0", "conv_stem"), ("stem.1", "bn1"))
    number = 0
    for stage, (expansion, _, count, _, _) in enumerate(STAGES):
        parts = ("expand", "depthwise", "project") if expansion > 1 else ("depthwise", "project")
        convs = ("conv_pw", "conv_dw", "conv_pwl") if expansion > 1 else ("conv_dw", "conv_pw")
        for block in range(count):
            for place, (part, conv) in enumerate(zip(parts, convs, strict=True), 1):
                yield f"blocks.{number}.{part}.0", f"blocks.{stage}.{block}.{conv}"
                yield f"blocks.{number}.{part}.1", f"blocks.{stage}.{block}.bn{place}"
            number += 1
    yield from (("head.0", "conv_head"), ("head.1", "bn2"), ("classifier", "classifier"))


def _lite_names() -> Iterator[tuple[str, str]]:
    yield from (("stem.0", "_conv_stem"), ("stem.1", "_bn0"))
    expansions = [expansion for expansion, _, count, _, _ in STAGES for _ in range(count)]
    for number, expansion in enumerate(expansions):
        parts = ("expand", "depthwise", "project")
        for place, part in enumerate(parts):
            if part == "expand" and expansion == 1:
                continue
            yield f"blocks.{number}.{part}.0", f"_blocks.{number}._{part}_conv"
            yield f"blocks.{number}.{part}.1", f"_blocks.{number}._bn{place}"
    yield from (("head.0", "_conv_head"), ("head.1", "_bn1"), ("classifier", "_fc"))


NAMES = {"conv_stem.weight": dict(_timm_names()), "_conv_stem.weight": dict(_lite_names())}
"""By a key that only this kind of file has: our names of modules -> timm's (tf_efficientnet_lite0)
or those of efficientnet_lite_pytorch."""


def own_keys(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights of timm or of efficientnet_lite_pytorch under the names of `EfficientNetLite0`.

    The classifier is left out; a missing, unknown or misshapen key raises.
    """
    kind = next((names for key, names in NAMES.items() if key in weights), None)
    with torch.device("meta"):
        expected = EfficientNetLite0().state_dict()
    renamed = {}
    for key, tensor in expected.items():
        module, _, leaf = key.rpartition(".")
        name = key if kind is None else f"{kind[module]}.{leaf}"
        if name not in weights:
            raise TorchcapsError(f"these are no weights of EfficientNet-Lite0: no {name!r}.")
        if weights[name].shape != tensor.shape:
            shapes = list(weights[name].shape), list(tensor.shape)
            raise TorchcapsError(f"{name} has the shape {shapes[0]}, not {shapes[1]}.")
        renamed[key] = weights[name]
    last = "classifier" if kind is None else kind["classifier"]
    unknown = (
        len(weights) - len(renamed) - sum(f"{last}.{n}" in weights for n in ("weight", "bias"))
    )
    if unknown:
        raise TorchcapsError(f"these are no weights of EfficientNet-Lite0: {unknown} more keys.")
    return renamed
