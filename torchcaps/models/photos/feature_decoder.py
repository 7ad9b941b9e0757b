"""A decoder from class poses to the standardized feature maps that a head sees.

The hidden units are a linear function of the poses plus one of a position's coordinates, so no
weight depends on the size of the maps.
"""

import torch
from torch import Tensor, nn

HIDDEN = 256


class FeatureDecoder(nn.Module):
    """Two hidden layers at each position. units [B,N], size (H, W) -> maps [B,C,H,W]

    >>> FeatureDecoder(in_units=160, channels=12)(torch.rand(2, 160), (3, 3)).shape
    torch.Size([2, 12, 3, 3])
    """

    letters = "[B,JE] -> [B,C,H,W]"

    def __init__(self, *, in_units: int, channels: int):
        super().__init__()
        self.poses = nn.Linear(in_units, HIDDEN)
        self.places = nn.Linear(2, HIDDEN, bias=False)
        self.out = nn.Sequential(
            nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, channels)
        )
        self.standardize = nn.BatchNorm2d(channels, affine=False)

    def forward(self, units: Tensor, size: tuple[int, int]) -> Tensor:
        sides = (torch.linspace(-1, 1, side, device=units.device) for side in size)
        places = torch.stack(torch.meshgrid(*sides, indexing="ij"), -1).flatten(0, 1)
        hidden = self.poses(units)[:, None] + self.places(places)
        return self.out(hidden).mT.unflatten(2, size)

    def errors(self, units: Tensor, maps: Tensor) -> Tensor:
        """Squared errors; 1 is on average the error of each channel's mean. -> [B,C,H,W]

        units [B,N]; maps [B,C,H,W], to which no gradient flows
        """
        target = self.standardize(maps.detach())
        variance = self.standardize.running_var
        assert variance is not None
        scale = (variance / variance.mean()).sqrt()  # small channels stay small
        target = target * scale[:, None, None]
        return (self(units, (maps.shape[2], maps.shape[3])) - target).square()
