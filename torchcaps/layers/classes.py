"""Class capsules without poses: where self-routing sends the activations, and nothing else."""

import torch
from torch import Tensor, nn

from torchcaps.routing.self_routing import EPS, route_logits


class ClassCaps(nn.Module):
    """poses [B,L,I,D], activations [B,L,I] -> share of the activation of each class [B,L,Y]

    Self-routing's last layer: its transforms would make poses that nobody reads.
    """

    letters = "[B,L,I,D] -> [B,L,J]"

    def __init__(self, in_caps: int, in_dim: int, num_classes: int, route_std: float = 0.01):
        super().__init__()
        # small, not the authors' zeros: then the layers below have a gradient from the first step
        self.route_weight = nn.Parameter(route_std * torch.randn(in_caps, in_dim, num_classes))
        self.route_bias = nn.Parameter(torch.zeros(in_caps, num_classes))

    def forward(self, poses: Tensor, activations: Tensor) -> Tensor:
        logits = route_logits(poses.flatten(0, 1), self.route_weight).unflatten(0, poses.shape[:2])
        shares = (logits.float() + self.route_bias.mT).softmax(2)
        active = activations.float()[:, :, None]
        return (shares * active).sum(3) / (active.sum(3) + EPS)
