"""Draws from a generative model's prior: objects, then which object each part has, then parts."""

from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.layers.arrangement import Arrangement
from torchcaps.losses.concrete import logistic_noise
from torchcaps.models.generative import Generative

SURE = 30.0
"""The logit of what is on for certain."""


class Drawn(NamedTuple):
    images: Tensor
    """The images without the noise of pixels [B,C,H,W]."""
    poses: Tensor
    """The poses of the parts [B,I,2,3]."""
    presences: Tensor
    """The presences of the parts, from 0 to 1 [B,I]."""
    owners: Tensor
    """The object of each part, 0: none [B,I]."""


@torch.no_grad()
def sample(model: Generative, count: int, seed: int = 0) -> Drawn:
    """Images that the model makes up, on a CPU the same ones for a seed."""
    c = model.options
    device = model.process.presence.device
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator).to(device)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    objects = c.num_caps[0]
    logits = (model.process.presence + logistic_noise(uniform(count, objects))) / c.tau
    if c.objects == "one":
        only = (uniform(count, 1) * objects).long()
        logits = torch.full_like(logits, -SURE).scatter(1, only, SURE)
    poses = torch.eye(2, 3, device=device) + c.pose_std * normal(count, objects, 2, 3)
    owners = torch.zeros(count, 1, dtype=torch.long, device=device)
    for arrangement in model.process.arrangements:
        assert isinstance(arrangement, Arrangement)
        parts = len(arrangement.share)
        steps = arrangement.log_selection(logits).exp().cumsum(-1)
        owners = (steps < uniform(count, parts, 1)).sum(-1).clamp(max=steps.shape[-1] - 1)
        chance = arrangement.chances.expand(count, -1, -1).gather(2, owners[..., None])[..., 0]
        logits = (chance + logistic_noise(uniform(count, parts))) / c.tau
        at = owners[..., None, None, None].expand(-1, -1, 1, 2, 3)
        std = arrangement.std.expand(count, -1, -1).gather(2, owners[..., None])[..., None]
        on = (uniform(count, parts) < logits.sigmoid())[..., None, None]
        mean = torch.where(
            on, arrangement.means(poses).gather(2, at)[:, :, 0], arrangement.identity
        )
        poses = mean + torch.where(on, std, arrangement.off_std) * normal(count, parts, 2, 3)
    presences = logits.sigmoid()
    return Drawn(model.process.templates(poses, presences), poses, presences, owners)
