"""Class capsules without poses: where self-routing sends the activations, and nothing else."""

from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.functional import exact
from torchcaps.layers.routers import Capsules
from torchcaps.routing.self import EPS, route_logits


class ClassCaps(nn.Module):
    """Where self-routing sends the activations, at each position.

    poses [B,L,I,D], activations [B,L,I] -> share of the activation of each class [B,L,Y]

    Self-routing's last layer: its transforms would make poses that nobody reads.
    """

    letters = "[B,L,I,D] -> [B,L,J]"

    def __init__(self, in_caps: int, in_dim: int, num_classes: int, route_std: float = 0.01):
        super().__init__()
        # small, not the authors' zeros: then the layers below have a gradient from the first step
        self.route_weight = nn.Parameter(route_std * torch.randn(in_caps, in_dim, num_classes))
        self.route_bias = nn.Parameter(torch.zeros(in_caps, num_classes))

    def extra_repr(self) -> str:
        children, dim, classes = self.route_weight.shape
        return f"{children} of {dim} -> {classes} without poses, self-routing"

    def forward(self, poses: Tensor, activations: Tensor, *, coupling: bool = False) -> Capsules:
        logits = route_logits(poses.flatten(0, 1), self.route_weight)  # [B*L,1,Y,I]
        logits = logits.unflatten(0, poses.shape[:2]).squeeze(2)
        shares = (exact(logits) + self.route_bias.mT).softmax(2)
        active = exact(activations)[:, :, None]
        found = (shares * active).sum(3) / (active.sum(3) + EPS)
        no_poses: Any = None
        return Capsules(no_poses, found, shares.mT if coupling else None)
