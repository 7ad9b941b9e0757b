"""A crop that follows the ink, so that its content is invariant to shifts of the image."""

import torch
from torch import Tensor, nn

from torchcaps.functional import warp


class Frame(nn.Module):
    """Crop images around their center of saliency.

    images [B,C,H,W] -> crops [B,C,side,side], center [B,2] (right, down, from the image's center)

    Saliency is brightness times the output of two small convolutions, so that it starts as the ink
    itself.
    """

    letters = "[B,C,H,W] -> [B,C,H,W]"

    def __init__(self, in_channels: int, side: int, channels: int = 8):
        super().__init__()
        self.side = side
        self.saliency = nn.Sequential(
            nn.Conv2d(in_channels, channels, 5, padding=2), nn.ReLU(),
            nn.Conv2d(channels, 1, 5, padding=2), nn.Softplus(),
        )  # fmt: skip

    def center(self, images: Tensor) -> Tensor:
        """Center of saliency in pixels from the image's center. [B,C,H,W] -> [B,2]"""
        with torch.autocast(images.device.type, enabled=False):  # positions need float32
            images = images.float()
            salient = (images.mean(1) * self.saliency(images)[:, 0]).clamp(min=0)
            weight = salient / (salient.sum((1, 2), keepdim=True) + 1e-6)
            height, width = images.shape[2:]
            y = torch.arange(height, device=images.device) - (height - 1) / 2
            x = torch.arange(width, device=images.device) - (width - 1) / 2
            return torch.stack([(weight.sum(1) * x).sum(1), (weight.sum(2) * y).sum(1)], 1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        center = self.center(images)
        return shifted(images, -center, self.side), center


def shifted(images: Tensor, shift: Tensor, side: int) -> Tensor:
    """Images on a canvas of another side, shifted with subpixel precision. [B,C,H,W], [B,2]"""
    with torch.autocast(images.device.type, enabled=False):
        identity = torch.eye(2, device=images.device).expand(images.shape[0], 2, 2)
        matrix = torch.cat([identity, shift.float()[:, :, None]], 2)
        return warp(images.float(), matrix, side)
