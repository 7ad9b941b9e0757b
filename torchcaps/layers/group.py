"""Layers of group equivariant capsules: poses are rotations, features are invariant.

A convolution whose kernel turns with the capsule's pose, and a layer of capsules over windows whose
votes depend on where a child is, seen from the mean pose of its type.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.layers.routers import Capsules
from torchcaps.routing.group import group_routing, inverse_rotation, rotated, unit


def grid_positions(side: int) -> Tensor:
    """Centers of a square of pixels about its center: right and down. -> [side^2,2]"""
    line = torch.arange(side) - (side - 1) / 2
    return torch.stack([line.repeat(side), line.repeat_interleave(side)], -1)


FLAT = 1e-2
"""Gradient of an image below which its direction is noise."""


class GradientPoses(nn.Module):
    """Direction and length of an image's gradient. images [B,C,H,W] -> [B,H,W,1,2], [B,H,W,1]"""

    letters = "[B,C,H,W] -> [B,H,W,1,2]"
    filters: Tensor

    def __init__(self):
        super().__init__()
        across = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 4
        filters = torch.stack([across, across.T])[:, None]
        self.register_buffer("filters", filters, persistent=False)

    def forward(self, images: Tensor) -> Capsules:
        gray = images.mean(1, keepdim=True)
        gradient = F.conv2d(gray, self.filters.to(gray), padding=1).permute(0, 2, 3, 1)
        length = gradient.square().sum(-1)
        return Capsules(unit(gradient, FLAT)[..., None, :], (length + 1e-12).sqrt()[..., None])


class GroupConv(nn.Module):
    """A convolution of 3x3 pixels with a kernel that every pose turns.

    features [B,C,H,W], poses [B,H,W,I,2] -> [B,I*N,H,W]; the kernel is a bilinear spline through
    points x points values, N = `width` outputs for each pose, and gives poses no gradient.
    """

    letters = "[B,C,H,W] -> [B,I*N,H,W]"
    offsets: Tensor

    def __init__(self, *, in_channels: int, num_types: int, width: int = 1, points: int = 5):
        super().__init__()
        self.points, self.width, self.num_types = points, width, num_types
        out = num_types * width
        self.weight = nn.Parameter(torch.empty(out * points**2, in_channels))
        self.bias = nn.Parameter(torch.zeros(out))
        nn.init.normal_(self.weight, std=(2 / (9 * in_channels)) ** 0.5)
        self.register_buffer("offsets", grid_positions(3), persistent=False)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[1]} -> {self.num_types} poses x {self.width}, {self.points}^2"

    def blend(self, poses: Tensor, offset: Tensor) -> Tensor:
        """Weights of the spline's values for a neighbor at this offset. -> [...,points^2]

        poses [...,2], offset [2]: right and down
        """
        seen = rotated(offset, inverse_rotation(poses.detach()))
        at = (seen / math.sqrt(2) + 1) / 2 * (self.points - 1)
        line = torch.arange(self.points, device=at.device, dtype=at.dtype)
        hats = F.relu(1 - (at[..., None] - line).abs())
        return (hats[..., 1, :, None] * hats[..., 0, None, :]).flatten(-2)

    def forward(self, features: Tensor, poses: Tensor) -> Tensor:
        weight = self.weight.unflatten(0, (self.num_types, self.width, -1))  # [I,N,K,C]
        few = features.shape[1] < self.width  # blend features or their products, if fewer
        if few:
            values = features[:, None, :, None]
        else:
            values = torch.einsum("bchw,inkc->binkhw", features, weight)
        blended = self._blended(values, poses)
        out = torch.einsum("bickhw,inkc->binhw", blended, weight) if few else blended.sum(3)
        return out.flatten(1, 2) + self.bias[:, None, None]

    def _blended(self, values: Tensor, poses: Tensor) -> Tensor:
        """Sum of neighbors, each with its weights. [B,I,N,K,H,W], poses [B,H,W,I,2] -> the same"""
        height, width = values.shape[-2:]
        values = F.pad(values, (1, 1, 1, 1))
        parts = []
        for number, offset in enumerate(self.offsets.to(poses).unbind()):
            y, x = divmod(number, 3)
            blend = self.blend(poses, offset).permute(0, 3, 4, 1, 2)[:, :, None]
            parts.append(values[..., y : y + height, x : x + width] * blend)
        return sum(parts[1:], parts[0])


class GroupCaps(nn.Module):
    """Capsules over windows of side `window`, without overlap.

    poses [B,H,W,I,2], activations [B,H,W,I] -> poses [B,H',W',J,2], activations [B,H',W',J]
    """

    letters = "[B,H,W,I,2] -> [B,H',W',J,2]"
    positions: Tensor

    def __init__(
        self, *, in_caps: int, out_caps: int, window: int, num_iters: int = 1, hidden: int = 32
    ):
        super().__init__()
        self.window, self.num_iters, self.out_caps = window, num_iters, out_caps
        self.turn = nn.Sequential(
            nn.Linear(2 * in_caps, hidden, bias=False),
            nn.Linear(hidden, in_caps * out_caps, bias=False),
        )
        self.alpha, self.beta = (nn.Parameter(torch.ones(out_caps)) for _ in range(2))
        positions = grid_positions(window) / max(0.5, (window - 1) / 2)
        self.register_buffer("positions", positions, persistent=False)

    def route(
        self, poses: Tensor, activations: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Route one window. poses [B,P,I,2], activations [B,P,I], positions [P,2]

        Positions are seen from the mean pose of each type, without gradient.
        """
        means = unit(poses.sum(1)).detach()
        seen = rotated(positions[None, :, None], inverse_rotation(means)[:, None])
        angles = self.turn(seen.flatten(2)).unflatten(2, (poses.shape[2], self.out_caps))
        children = poses.flatten(1, 2), activations.flatten(1), angles.flatten(1, 2)
        return group_routing(*children, self.alpha, self.beta, self.num_iters)

    def forward(self, poses: Tensor, activations: Tensor, *, coupling: bool = False) -> Capsules:
        k = self.window

        def windows(grid: Tensor) -> Tensor:  # [B,H,W,I,N] -> [B*H'*W',K*K,I,N]
            parts = grid.unflatten(2, (-1, k)).unflatten(1, (-1, k)).transpose(2, 3)
            return parts.flatten(3, 4).flatten(0, 2)

        batch, height, width = poses.shape[0], poses.shape[1] // k, poses.shape[2] // k
        rows = windows(poses), windows(activations[..., None])[..., 0]
        outputs = self.route(*rows, self.positions.to(poses))
        grid = (batch, height, width)
        mean, active, weights = (t.unflatten(0, grid) for t in outputs)
        return Capsules(mean, active, weights if coupling else None)
