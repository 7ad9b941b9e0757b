"""View-CapsNet: one ConvNet for several views of the image, combined by routing.

    views: the image and slightly rotated, scaled, sheared copies -> 3x3 convolutions, BatchNorm,
    GELU -> maximum over positions: T capsules of D for each view -> inverted attention routing to
    class capsules, transforms shared over views -> one linear map from pose to score

Our model of `robustness/best`. A view far from upright votes weakly for many classes, a view near
upright votes strongly for one, so classes compete for views as parents do for children.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor, nn

from torchcaps.errors import TorchcapsError
from torchcaps.layers import Capsules, DenseCaps, Inverted, NormStack, Views
from torchcaps.layers.stems import max_pool
from torchcaps.models.base import Model, ModelConfig, Output
from torchcaps.models.fields import Count, Iterations, Probability, Real, Stride
from torchcaps.models.registry import register


@dataclass(frozen=True, kw_only=True)
class ViewsConfig(ModelConfig):
    """Fields of networks on several views of an image."""

    rotations: tuple[Real, ...] = ()
    """Rotations of the additional views, in degrees."""
    scales: tuple[Real, ...] = ()
    """Scales of additional views."""
    shears: tuple[Real, ...] = ()
    """Shears of additional views."""
    jitter: tuple[Real, Real, Real] = field(default=(0.0, 0.0, 0.0), metadata={"digest": "wander"})
    """Random change of each view in training: degrees, relative size, shear."""


class MultiView(Model):
    """Base of networks on several views of an image: the same convolutions for each."""

    def __init__(self, config: ViewsConfig, channels: tuple[int, ...], strides: tuple[int, ...]):
        super().__init__()
        self.config = c = config
        self.views = Views(c.rotations, c.scales, c.shears, c.jitter)
        self.stem = NormStack(c.in_channels, channels, strides)

    def forward_features(self, images: Tensor) -> Tensor:
        self.check_images(images)
        features = self.stem(self.views(images))
        return features.unflatten(0, (-1, self.views.num_views)).flatten(1, 2)

    def pool(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Maps of each view [B,V,C,H,W], and their maxima over positions [B*V,C]."""
        by_view = features.unflatten(1, (self.views.num_views, -1))
        return by_view, max_pool(by_view.flatten(0, 1))


@dataclass(frozen=True, kw_only=True)
class ViewCapsNetConfig(ViewsConfig):
    family: ClassVar[str] = "view-capsnet"
    channels: tuple[Count, ...] = (32, 64, 128, 128, 256, 256, 240)
    """Channels of the convolutions."""
    strides: tuple[Stride, ...] = (1, 2, 1, 1, 2, 1, 1)
    """Strides of the convolutions."""
    pose_dim: Count = field(default=16, metadata={"digest": "dim"})
    """Entries of a pose; the last channels are split into capsules of this size."""
    num_iters: Iterations = 3
    """Routing iterations, including the uniform one; 1: no routing."""
    dropout: Probability = 0.1
    """Dropout rate of the pooled features."""
    rotations: tuple[Real, ...] = (-24.0, -12.0, 12.0, 24.0)
    """Rotations of the additional views, in degrees."""


class ViewCapsNet(MultiView):
    def __init__(self, config: ViewCapsNetConfig):
        super().__init__(config, config.channels, config.strides)
        c, self.dim = config, config.pose_dim
        types, remainder = divmod(c.channels[-1], c.pose_dim)
        if remainder:
            raise TorchcapsError(
                f"The last of channels={c.channels} must be a multiple of pose_dim={c.pose_dim}."
            )
        self.dropout = nn.Dropout(c.dropout)
        self.classes = DenseCaps(
            in_caps=self.views.num_views * types,
            in_dim=c.pose_dim,
            out_caps=c.num_classes,
            out_dim=c.pose_dim,
            shared=types,
            routing=Inverted(num_iters=c.num_iters),
        )
        self.head = nn.Linear(c.pose_dim, 1)

    def forward_capsules(self, features: Tensor, coupling: bool = False) -> Output:
        by_view, pooled = self.pool(features)
        by_image = self.dropout(pooled).unflatten(0, (-1, self.views.num_views)).flatten(1)
        capsules = Capsules(by_image.unflatten(1, (-1, self.dim)))
        classes = self.classes(capsules.poses, coupling=coupling)
        logits = self.head(classes.poses).squeeze(-1)
        return Output(logits, features=by_view[:, 0], layers=(capsules, classes))


register(
    "view-capsnet",
    ViewCapsNet,
    ViewCapsNetConfig(),
    "CapsNet over several views of the image, inverted attention",
)
