"""View-CapsNet: one trunk looks at the image from several poses, routing weighs what it saw.

    views: the image, and it turned, scaled, sheared a little -> 3x3 convolutions, BatchNorm, GELU
    -> maximum over positions: T capsules of D for each view -> inverted attention routing to class
    capsules, transforms shared over views -> one linear map from pose to score

Ours, for `robustness/best`. A view that is off the upright votes for many classes a little, one
that is near it for one class much, so classes compete for views as parents do for children.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from torchcaps.errors import TorchcapsError
from torchcaps.layers import Capsules, DenseCaps, Inverted, NormStack, Views
from torchcaps.layers.stem import max_pool
from torchcaps.models.base import CapsuleModel, ModelConfig, Output
from torchcaps.models.registry import register


@dataclass(frozen=True)
class ViewCapsNetConfig(ModelConfig):
    family: ClassVar[str] = "view-capsnet"
    channels: tuple[int, ...] = (32, 64, 128, 128, 256, 256, 240)
    """Channels of the convolutions."""
    strides: tuple[int, ...] = (1, 2, 1, 1, 2, 1, 1)
    """Strides of the convolutions."""
    dim: int = 16
    """Entries of a pose: the last channels are taken for capsules of so many."""
    num_iters: int = 3
    """Passes of routing, the uniform one counted; 1: no routing."""
    dropout: float = 0.1
    """Share of the pooled features that training drops."""
    rotations: tuple[float, ...] = (-24.0, -12.0, 12.0, 24.0)
    """Degrees of further views of the image."""
    scales: tuple[float, ...] = ()
    """Scales of further views."""
    shears: tuple[float, ...] = ()
    """Shears of further views."""
    wander: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Degrees, share of the size and shear by which views stray while the model learns."""


class ViewCapsNet(CapsuleModel):
    def __init__(self, config: ViewCapsNetConfig):
        super().__init__()
        self.config = c = config
        self.dim = c.dim
        types, left = divmod(c.channels[-1], c.dim)
        if left:
            raise TorchcapsError(f"{c.channels[-1]} channels are no capsules of {c.dim} entries.")
        self.views = Views(c.rotations, c.scales, c.shears, c.wander)
        self.stem = NormStack(c.in_channels, c.channels, c.strides)
        self.dropout = nn.Dropout(c.dropout)
        self.classes = DenseCaps(
            self.views.num_views * types, c.dim, c.num_classes, c.dim,
            shared=types, routing=Inverted(c.num_iters),
        )  # fmt: skip
        self.head = nn.Linear(c.dim, 1)

    def forward_features(self, images: Tensor) -> Tensor:
        self.check_images(images)
        return self.stem(self.views(images)).unflatten(0, (images.shape[0], -1)).flatten(1, 2)

    def answer(self, features: Tensor, coupling: bool = False) -> Output:
        seen = features.unflatten(1, (self.views.num_views, -1))
        pooled = self.dropout(max_pool(seen.flatten(0, 1)))
        views = Capsules(pooled.reshape(features.shape[0], -1, self.dim))
        classes = self.classes(views.poses, coupling=coupling)
        logits = self.head(classes.poses).squeeze(-1)
        return Output(logits, features=seen[:, 0], layers=(views, classes))


register(
    "view-capsnet",
    ViewCapsNet,
    ViewCapsNetConfig(),
    "3x3 convolutions over several views, inverted attention routing to classes",
)
