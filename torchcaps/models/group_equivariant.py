"""GE-CapsNet (Lenssen, Fey, Libuschewski: Group Equivariant Capsule Networks, 2018).

    image -> direction and length of its gradient: one capsule at each pixel
    four times: features by a convolution whose kernel turns with the poses; capsules over windows,
    features as maxima over them; the last window is the whole map, its capsules are the classes

A rotation of the image by 90 degrees rotates all poses with it and changes no logit; at other
angles the grid of pixels and windows does not fit, so logits change a little.

Differs from the authors' code: logits are the sum of its two predictions, the linear map of the
features and the log-odds of the activations, with one loss, where theirs has one loss for each;
four layers for five, since 40 pixels halve three times; and as in `routing.group`.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.errors import TorchcapsError
from torchcaps.functional import exact, log_odds
from torchcaps.layers.group import GradientPoses, GroupCaps, GroupConv
from torchcaps.models.base import Model, ModelConfig, Output
from torchcaps.models.fields import Count, Iterations, Kernel
from torchcaps.models.registry import register


@dataclass(frozen=True, kw_only=True)
class GECapsNetConfig(ModelConfig):
    family: ClassVar[str] = "ge-capsnet"
    num_types: tuple[Count, ...] = (16, 32, 32)
    """Types of capsule after each window of 2x2 pixels."""
    channels: Count = 16
    """Features of the first convolution."""
    points: Kernel = 5
    """Values on each axis of the splines that are kernels."""
    num_iters: Iterations = 1
    """Routing iterations."""


class GECapsNet(Model):
    coupling_sums = "any"

    def __init__(self, config: GECapsNetConfig):
        super().__init__()
        self.config = c = config
        step = 2 ** len(c.num_types)
        side = -(-c.image_size // step)
        if (c.image_width or c.image_size) != c.image_size:
            raise TorchcapsError("A rotation by 90 degrees needs square images.")
        self.pad = side * step - c.image_size
        self.gradient = GradientPoses()
        convs, heads, layers = [], [], []
        types, channels = 1, c.in_channels
        for number, parents in enumerate((*c.num_types, c.num_classes)):
            width = c.channels if number == 0 else 1
            conv = GroupConv(in_channels=channels, num_types=types, width=width, points=c.points)
            window = 2 if number < len(c.num_types) else side
            convs.append(conv)
            layers.append(
                GroupCaps(in_caps=types, out_caps=parents, window=window, num_iters=c.num_iters)
            )
            heads.append(nn.Conv2d(types * width, parents, 1))
            types = channels = parents
        self.convs, self.heads = nn.ModuleList(convs), nn.ModuleList(heads)
        self.layers = nn.ModuleList(layers)
        self.windows = tuple(layer.window for layer in layers)

    def forward_features(self, images: Tensor) -> Tensor:
        self.check_images(images)
        before = self.pad // 2
        return F.pad(images, (before, self.pad - before) * 2)

    def forward_capsules(self, features: Tensor, coupling: bool = False) -> Output:
        with torch.autocast(features.device.type, enabled=False):
            maps = exact(features)
            layers = [self.gradient(maps)]
            parts = zip(self.convs, self.heads, self.layers, self.windows, strict=True)
            for conv, head, layer, window in parts:
                poses, active, _ = layers[-1]
                maps = F.max_pool2d(conv(maps, poses).relu(), window)
                maps = head(maps)
                layers.append(layer(poses, active, coupling=coupling))
            poses, active, shares = layers[-1]
            assert active is not None
            active = active[:, 0, 0]
            shares = None if shares is None else shares[:, 0, 0]
            layers[-1] = layers[-1]._replace(
                poses=poses[:, 0, 0], activations=active, coupling=shares
            )
            logits = maps[:, :, 0, 0] + log_odds(active)
        return Output(logits, None, features, tuple(layers))


register(
    "ge-capsnet",
    GECapsNet,
    GECapsNetConfig(),
    "group equivariant capsules (Lenssen et al. 2018)",
)
