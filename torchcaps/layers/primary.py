"""Primary capsules: one convolution whose channels are read as poses."""

from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.functional import squash


class PrimaryCaps(nn.Module):
    """I types of capsule at every position. features [B,C,H,W] -> poses [B,H',W',I,D]

    A pose is D channels at one position: the channel axis is split and moved last, never viewed
    across positions. scale: what the convolution's sums are multiplied by, before the bias.
    """

    letters = "[B,C,H,W] -> [B,H,W,I,D]"

    def __init__(
        self,
        in_channels: int,
        num_types: int,
        out_dim: int,
        kernel_size: int,
        stride: int,
        squash: bool = True,
        bias: bool = True,
        scale: float = 1.0,
    ):
        super().__init__()
        self.num_types, self.out_dim, self.squash, self.scale = num_types, out_dim, squash, scale
        self.conv = nn.Conv2d(in_channels, num_types * out_dim, kernel_size, stride, bias=bias)

    def forward(self, features: Tensor) -> Tensor:
        conv = self.conv
        if self.scale == 1:
            maps = conv(features)
        else:  # of the weights, which are fewer than the sums
            maps = F.conv2d(features, conv.weight * self.scale, conv.bias, conv.stride)
        maps = maps.unflatten(1, (self.num_types, self.out_dim))
        poses = maps.permute(0, 3, 4, 1, 2)
        return squash(poses) if self.squash else poses
