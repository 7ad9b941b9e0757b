"""A plain convolutional autoencoder, for comparison with capsules that learn without labels.

Conv(256,9,1) + ReLU -> Conv(256,9,2) + ReLU -> FC(256): the code -> FC(512) + FC(1024) + FC(pixels)
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from torchcaps.errors import TorchcapsError
from torchcaps.layers import Capsules, ConvStack, MLPDecoder
from torchcaps.layers.stem import conv_out
from torchcaps.models.base import CapsuleModel, ModelConfig, Output
from torchcaps.models.registry import register


@dataclass(frozen=True)
class AutoencoderConfig(ModelConfig):
    family: ClassVar[str] = "autoencoder"
    oblong: ClassVar[bool] = True
    channels: int = 256
    """Channels of both convolutions."""
    kernel_size: int = 9
    """Side of their kernels."""
    units: int = 256
    """Units of the code."""
    hidden: tuple[int, ...] = (512, 1024)
    """Units of the decoder's hidden layers."""


class Autoencoder(CapsuleModel):
    """Its code is one capsule, so that what looks at capsules can look at it."""

    def __init__(self, config: AutoencoderConfig):
        super().__init__()
        self.config = c = config
        places = c.places(lambda s: conv_out(conv_out(s, c.kernel_size), c.kernel_size, 2))
        if not places:
            raise TorchcapsError(
                f"{c.image_size} pixels are too few for two convolutions of {c.kernel_size}."
            )
        self.stem = ConvStack(c.in_channels, (c.channels, c.channels), c.kernel_size, (1, 2))
        # torch.export makes a GraphModule, where the name `code` is taken
        self.narrow = nn.Linear(c.channels * places, c.units)
        self.decoder = MLPDecoder(c.units, c.hidden, c.image_shape)

    @property
    def provides(self) -> frozenset[str]:
        return frozenset({"decode", "redraw"})

    def encode(self, images: Tensor, *, coupling: bool = False) -> Output:
        self.check_images(images)
        features = self.stem(images)
        code = self.narrow(features.flatten(1))
        return Output(features=features, layers=(Capsules(code[:, None]),))

    def decode(self, poses: Tensor, labels: Tensor | None = None) -> Tensor:
        assert self.decoder is not None
        return self.decoder(poses.flatten(1))


register("autoencoder", Autoencoder, AutoencoderConfig(), "a plain convolutional autoencoder")
