"""Samples from a generative model's prior: objects, the object of each part, then the parts."""

from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.models.generative.arrangement import Arrangement
from torchcaps.models.generative.concrete import logistic_noise
from torchcaps.models.generative.model import Generative
from torchcaps.models.generative.process import ON_LOGIT


class Samples(NamedTuple):
    images: Tensor
    """Images without pixel noise [B,C,H,W]."""
    poses: Tensor
    """Poses of the parts [B,I,2,3]."""
    presences: Tensor
    """Presences of the parts, from 0 to 1 [B,I]."""
    owners: Tensor
    """Object of each part, 0: no object [B,I]."""


@torch.no_grad()
def sample(model: Generative, count: int, seed: int = 0) -> Samples:
    """Sample images from the prior; on a CPU the result depends on the seed alone."""
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
        index = (uniform(count, 1) * objects).long()
        logits = torch.full_like(logits, -ON_LOGIT).scatter(1, index, ON_LOGIT)
    poses = torch.eye(2, 3, device=device) + c.pose_std * normal(count, objects, 2, 3)
    owners = torch.zeros(count, 1, dtype=torch.long, device=device)
    for arrangement in model.process.arrangements:
        assert isinstance(arrangement, Arrangement)
        parts = len(arrangement.share)
        cumulative = arrangement.log_selection(logits).exp().cumsum(-1)
        owners = (cumulative < uniform(count, parts, 1)).sum(-1).clamp(max=cumulative.shape[-1] - 1)
        index = owners[..., None]
        presence = arrangement.presence_logits.expand(count, -1, -1).gather(2, index)[..., 0]
        logits = (presence + logistic_noise(uniform(count, parts))) / c.tau
        std = arrangement.std.expand(count, -1, -1).gather(2, index)[..., None]
        on = (uniform(count, parts) < logits.sigmoid())[..., None, None]
        index = owners[..., None, None, None].expand(-1, -1, 1, 2, 3)
        mean = arrangement.means(poses).gather(2, index)[:, :, 0]
        mean = torch.where(on, mean, arrangement.identity)
        poses = mean + torch.where(on, std, arrangement.off_std) * normal(count, parts, 2, 3)
    presences = logits.sigmoid()
    return Samples(model.process.templates(poses, presences), poses, presences, owners)
