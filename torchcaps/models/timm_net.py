"""Any classifier of timm, for comparison: `create_model("mobilenetv3", network="convnext_tiny")`.

Needs `pip install 'torchcaps[timm]'`. Weights start at random.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from torchcaps.errors import TorchcapsError, known_to_timm, require
from torchcaps.layers import Normalise
from torchcaps.models.base import CapsuleModel, ModelConfig, Output
from torchcaps.models.registry import register


@dataclass(frozen=True)
class TimmConfig(ModelConfig):
    family: ClassVar[str] = "timm"
    network: str = "mobilenetv3_small_100"
    """The network's name in timm."""
    patch_size: int = 0
    """Side of a transformer's patches; 0: the network's own."""


class TimmNet(CapsuleModel):
    def __init__(self, config: TimmConfig):
        super().__init__()
        self.config = c = config
        timm = require("timm", "timm")
        known_to_timm(c.network)
        sizes = {"img_size": c.image_size, "patch_size": c.patch_size} if c.patch_size else {}
        self.normalise = Normalise(c.in_channels)
        try:
            self.body = timm.create_model(
                c.network, in_chans=c.in_channels, num_classes=c.num_classes, **sizes
            )
        except (RuntimeError, TypeError) as error:
            raise TorchcapsError(f"timm cannot make {c.network!r}: {error}") from None

    def forward_features(self, images: Tensor) -> Tensor:
        self.check_images(images)
        return self.body.forward_features(self.normalise(images))

    def answer(self, features: Tensor, coupling: bool = False) -> Output:
        return Output(logits=self.body.forward_head(features), features=features)

    def representations(self, images: Tensor) -> dict[str, Tensor]:
        features = self.forward_features(images)
        return {"features": self.body.forward_head(features, pre_logits=True)}


register("mobilenetv3", TimmNet, TimmConfig(3, 32), "MobileNetV3-Small of timm")
register("resnet18-timm", TimmNet, TimmConfig(3, 64, network="resnet18"), "ResNet-18 of timm")
register(
    "vit-small",
    TimmNet,
    TimmConfig(3, 32, network="vit_small_patch16_224", patch_size=4),
    "ViT-S of timm on small patches",
)
