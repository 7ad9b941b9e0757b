"""Objects that start as the commonest arrangements of parts, so that none begins without a meaning.

k-means of the parts' poses. With frames, every image counts from the frame in which it is nearest
to a centre, so that turned copies of one arrangement share one.
"""

import torch
from torch import Tensor

from torchcaps.layers.arrangement import Arrangement
from torchcaps.layers.turns import rotations, turned, undone
from torchcaps.models.generative import Generative


def _apart(points: Tensor, centres: Tensor) -> Tensor:
    """Squared distances. [N,F,D], [J,D] -> [N,F,J]"""
    return torch.cdist(points, centres.expand(len(points), -1, -1)).square()


def _nearest(points: Tensor, centres: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The centre of each point [N], the point as that frame has it [N,D], the distance [N]."""
    least, which = _apart(points, centres).flatten(1).min(1)
    frame, centre = which // len(centres), which % len(centres)
    return centre, points[torch.arange(len(points), device=points.device), frame], least


def centres_of(points: Tensor, count: int, rounds: int = 20, seed: int = 0) -> Tensor:
    """k-means whose points may each be had in several forms, of which the nearest counts.

    points [N,F,D] -> centres [count,D]
    """
    generator = torch.Generator().manual_seed(seed)
    centres = points[:1, 0]
    while len(centres) < count:  # far ones first, as k-means++ has it
        far = _nearest(points, centres)[2].cpu().double().clamp(min=1e-12)
        pick = int(torch.multinomial(far, 1, generator=generator))
        centres = torch.cat([centres, points[pick, :1]])
    for _ in range(rounds):
        centre, chosen, _ = _nearest(points, centres)
        sums = torch.zeros_like(centres).index_add_(0, centre, chosen)
        members = torch.bincount(centre, minlength=count)[:, None]
        centres = torch.where(members > 0, sums / members.clamp(min=1), centres)
    return centres


@torch.no_grad()
def seed_objects(model: Generative, images: Tensor) -> None:
    """Put the lowest objects where parts of these images stand together. images [N,C,H,W]"""
    frames = rotations(model.options.frames, images)
    found = []
    for part in images.split(500):
        views = [turned(part, undone(f).expand(len(part), 2, 3)) for f in frames]
        found.append(torch.stack([model.infer(v)[0].mean.flatten(1) for v in views], 1))
    points = torch.cat(found)
    arrangement = model.process.arrangements[-1]
    assert isinstance(arrangement, Arrangement)
    parts, objects = arrangement.share.shape
    centres = centres_of(points, objects)
    arrangement.place.copy_(centres.view(objects, parts, 2, 3).transpose(0, 1))
    centre, chosen, _ = _nearest(points, centres)
    errors = (chosen - centres[centre]).square().view(-1, parts, 6).mean(-1)
    sums = errors.new_zeros(objects, parts).index_add_(0, centre, errors)
    members = torch.bincount(centre, minlength=objects)[:, None].clamp(min=1)
    spread = ((sums / members).sqrt().T - arrangement.min_std).clamp(min=0.02)
    arrangement.spread.copy_(spread.expm1().log())
