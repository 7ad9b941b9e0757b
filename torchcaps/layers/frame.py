"""A frame that follows the ink: what is seen in it does not change when the image is shifted."""

import torch
from torch import Tensor, nn

from torchcaps.functional import warp


class Frame(nn.Module):
    """The part of an image around the centre of what is salient, and the way back.

    images [B,C,H,W] -> crops [B,C,side,side], centre [B,2] (right, down, from the image's centre)

    Saliency is brightness times what two small convolutions make of its neighbourhood, so that it
    starts as the ink itself.
    """

    letters = "[B,C,H,W] -> [B,C,H,W]"

    def __init__(self, in_channels: int, side: int, channels: int = 8):
        super().__init__()
        self.side = side
        self.saliency = nn.Sequential(
            nn.Conv2d(in_channels, channels, 5, padding=2), nn.ReLU(),
            nn.Conv2d(channels, 1, 5, padding=2), nn.Softplus(),
        )  # fmt: skip

    def centre(self, images: Tensor) -> Tensor:
        """images [B,C,H,W] -> centre of saliency [B,2], in pixels from the image's centre"""
        with torch.autocast(images.device.type, enabled=False):  # places need float32
            images = images.float()
            salient = (images.mean(1) * self.saliency(images)[:, 0]).clamp(min=0)
            weight = salient / (salient.sum((1, 2), keepdim=True) + 1e-6)
            height, width = images.shape[2:]
            y = torch.arange(height, device=images.device) - (height - 1) / 2
            x = torch.arange(width, device=images.device) - (width - 1) / 2
            return torch.stack([(weight.sum(1) * x).sum(1), (weight.sum(2) * y).sum(1)], 1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        centre = self.centre(images)
        return moved(images, -centre, self.side), centre


def moved(images: Tensor, shift: Tensor, side: int) -> Tensor:
    """Images on a canvas of another side, shifted by parts of pixels. [B,C,H,W], [B,2]"""
    with torch.autocast(images.device.type, enabled=False):
        still = torch.eye(2, device=images.device).expand(images.shape[0], 2, 2)
        matrix = torch.cat([still, shift.float()[:, :, None]], 2)
        return warp(images.float(), matrix, side)
