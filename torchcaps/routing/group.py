"""Routing by weighted group means (Lenssen, Fey, Libuschewski: Group Equivariant Capsule Networks).

Poses are rotations of the plane: unit vectors z = (cos, sin), with the product of complex numbers.

    votes v_ij = p_i exp(i theta_ij);  mean_j = sum_i w_ij v_ij / |sum_i w_ij v_ij|
    w_ij = a_i first, then T times a_i (1 + <mean_j, v_ij>) / 2
    a_j = sigmoid(alpha / n sum_i w_ij (1 + <mean_j, v_ij>) / 2 + beta - 1)

A rotation of all p_i rotates every mean_j and changes no weight, so poses are equivariant and
activations invariant.

Differs from the authors' code: |z| is sqrt(|z|^2 + eps^2), so that a pose without direction is
short instead of arbitrary; and activations fade to 0 where no child is active, instead of a mask.
"""

import torch
from torch import Tensor

from torchcaps.errors import TorchcapsError

SHORT = 1e-3
"""Length below which a sum has no direction, and mass below which a parent is inactive."""


def unit(vectors: Tensor, short: float = SHORT) -> Tensor:
    """Vectors of length 1; shorter if they were not much longer than `short`. [...,2] -> [...,2]"""
    return vectors / (vectors.square().sum(-1, keepdim=True) + short**2).sqrt()


def rotated(poses: Tensor, by: Tensor) -> Tensor:
    """Product of rotations, as complex numbers. [...,2] x [...,2] -> [...,2]"""
    (a, b), (c, d) = poses.unbind(-1), by.unbind(-1)
    return torch.stack([a * c - b * d, a * d + b * c], -1)


def inverse_rotation(poses: Tensor) -> Tensor:
    """Inverse of rotations. [...,2] -> [...,2]"""
    return poses * poses.new_tensor([1.0, -1.0])


def group_routing(
    poses: Tensor,
    activations: Tensor,
    angles: Tensor,
    alpha: Tensor,
    beta: Tensor,
    num_iters: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Routing by the formula above.

    poses [B,I,2], activations [B,I], angles [B,I,J], alpha [J], beta [J]
    -> poses [B,J,2], activations [B,J], weights [B,I,J]
    """
    if num_iters < 0:
        raise TorchcapsError(f"num_iters={num_iters}: must be at least 0.")
    votes = rotated(poses[:, :, None], torch.stack([angles.cos(), angles.sin()], -1))
    weights = activations[..., None].expand(votes.shape[:-1])
    mean, agreement = votes[:, 0], weights  # set by the first pass
    for t in range(num_iters + 1):
        mean = unit((weights[..., None] * votes).sum(1))
        agreement = (1 + (mean[:, None] * votes).sum(-1)) / 2
        if t < num_iters:
            weights = activations[..., None] * agreement
    logits = alpha * (weights * agreement).mean(1) + beta - 1
    mass = activations.sum(1, keepdim=True)
    return mean, logits.sigmoid() * mass / (mass + SHORT), weights
