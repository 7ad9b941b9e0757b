"""The CNNs that the `inverted` paper sets beside its capsules (its Tables 1 to 3 and 12).

CNN            three convolutions of 1,024 with stride 2, average pooling between, a linear output
CNN-multi      three convolutions of 1,024, linear 640 at each position, average pooling
CNN-multi-fc   the same with a fully connected layer in place of the pooling
ResNet-18      for small images: a 3x3 convolution first, no pooling before the blocks
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from torchcaps.errors import TorchcapsError
from torchcaps.layers import Normalise, ResNetStack
from torchcaps.models.base import CapsuleModel, ModelConfig, Output
from torchcaps.models.registry import register


@dataclass(frozen=True)
class CNNConfig(ModelConfig):
    family: ClassVar[str] = "cnn"
    oblong: ClassVar[bool] = True
    kind: Literal["cifar", "multi", "multi-fc", "resnet18"] = "cifar"
    """Which of the networks above."""
    channels: int = 1024
    """Channels of the convolutions; of ResNet-18, those of its first stage."""
    hidden: int = 640
    """Units before the output of the multi kinds."""


def _block(in_channels: int, channels: int, stride: int, padding: int) -> list[nn.Module]:
    conv = nn.Conv2d(in_channels, channels, 3, stride, padding)
    return [conv, nn.ReLU(), nn.BatchNorm2d(channels)]


class CNN(CapsuleModel):
    def __init__(self, config: CNNConfig):
        super().__init__()
        self.config = c = config
        wide = c.channels
        self.normalise = Normalise(c.in_channels)
        first = [nn.Conv2d(c.in_channels, wide, 3, 2, 1), nn.ReLU()]
        if c.kind == "resnet18":
            stages = tuple((wide * 2**n, 2) for n in range(4))
            self.stem: nn.Module = ResNetStack(c.in_channels, stages)
            self.head: nn.Module = nn.Sequential(
                nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * wide, c.num_classes)
            )
        elif c.kind == "cifar":
            if min(c.image_shape[1:]) < 8:
                raise TorchcapsError(f"{c.image_size} pixels are too few: it halves them 3 times.")
            pooled = nn.AvgPool2d(2)
            self.stem = nn.Sequential(
                *first, *_block(wide, wide, 2, 1), pooled, *_block(wide, wide, 2, 1)
            )
            self.head = nn.Sequential(
                nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, c.num_classes)
            )
        else:
            places = c.places(lambda side: ((side + 1) // 2 - 3) // 2 + 1 - 2)
            if not places:
                raise TorchcapsError(f"{c.image_size} pixels are too few for three convolutions.")
            self.stem = nn.Sequential(*first, *_block(wide, wide, 2, 0), *_block(wide, wide, 1, 0))
            inside = [nn.Conv2d(wide, c.hidden, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
            if c.kind == "multi-fc":
                inside = [nn.Flatten(), nn.Linear(wide * places, c.hidden)]
            self.head = nn.Sequential(*inside, nn.Linear(c.hidden, c.num_classes))

    def forward_features(self, images: Tensor) -> Tensor:
        self.check_images(images)
        return self.stem(self.normalise(images))

    def answer(self, features: Tensor, coupling: bool = False) -> Output:
        return Output(logits=self.head(features), features=features)


register("cnn", CNN, CNNConfig(3, 32), "three wide convolutions, CIFAR")
register("cnn-multi", CNN, CNNConfig(1, 36, kind="multi"), "three wide convolutions, two digits")
register("cnn-multi-fc", CNN, CNNConfig(1, 36, kind="multi-fc"), "CNN-multi without its pooling")
register("resnet18", CNN, CNNConfig(3, 32, kind="resnet18", channels=64), "ResNet-18, small images")
