"""CutMix (Yun et al. 2019): a rectangle of another image, and its label by area."""

from dataclasses import replace

import torch
from torch import Tensor

from torchcaps.data.dataset import Batch

NUM_DRAWS = 4


def cutmix(batch: Batch, other: Batch, u: Tensor, p: float) -> Batch:
    """`other`'s rectangle in each image, with probability p; u [B,4] uniform.

    Its area before the border cuts it is uniform, its centre anywhere. `pasted` and `kept` say what
    came in and how much of the image is still its own.
    """
    height, width = batch.images.shape[2:]
    extent = torch.tensor([height, width], device=u.device)
    half = (u[:, :1] * (u[:, 1:2] < p)).sqrt() * extent / 2
    centre = u[:, 2:4] * extent
    low = (centre - half).round().clamp(min=0)
    high = torch.minimum((centre + half).round(), extent)
    rows = torch.arange(height, device=u.device)[None]
    columns = torch.arange(width, device=u.device)[None]
    down = (rows >= low[:, :1]) & (rows < high[:, :1])
    across = (columns >= low[:, 1:]) & (columns < high[:, 1:])
    inside = down[:, :, None] & across[:, None, :]
    return replace(
        batch,
        images=torch.where(inside[:, None], other.images, batch.images),
        pasted=other.labels,
        kept=1 - inside.float().mean((1, 2)),
    )
