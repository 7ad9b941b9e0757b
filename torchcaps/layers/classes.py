"""Class capsules without poses: where self-routing sends the activations, and nothing else."""

import torch
from torch import Tensor, nn

EPS = 1e-8


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
        logits = torch.einsum("blid,idj->blij", poses, self.route_weight) + self.route_bias
        shares = logits.float().softmax(-1)
        active = activations.float()[..., None]
        return (shares * active).sum(2) / (active.sum(2) + EPS)
