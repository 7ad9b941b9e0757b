"""Initial objects from a clustering of the parts, so that every object starts with a meaning.

k-means of the poses of the parts. With several frames, each image counts in the frame in which it
is nearest to a center, so that rotated copies of one arrangement share a cluster.
"""

import torch
from torch import Tensor

from torchcaps.layers.rotations import inverse, rotate, rotations
from torchcaps.models.generative.arrangement import Arrangement
from torchcaps.models.generative.model import Generative


def _distances(points: Tensor, centers: Tensor) -> Tensor:
    """Squared distances. [N,F,D], [J,D] -> [N,F,J]"""
    return torch.cdist(points, centers.expand(len(points), -1, -1)).square()


def _nearest(points: Tensor, centers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Nearest center of each point [N], the point in the frame used [N,D], the distance [N]."""
    distance, index = _distances(points, centers).flatten(1).min(1)
    frame, center = index // len(centers), index % len(centers)
    return center, points[torch.arange(len(points), device=points.device), frame], distance


def centers_of(points: Tensor, count: int, rounds: int = 20, seed: int = 0) -> Tensor:
    """k-means over points that are known in several frames; the nearest frame counts.

    points [N,F,D] -> centers [count,D]
    """
    generator = torch.Generator().manual_seed(seed)
    centers = points[:1, 0]
    while len(centers) < count:  # k-means++ initialization
        distances = _nearest(points, centers)[2].cpu().double().clamp(min=1e-12)
        index = int(torch.multinomial(distances, 1, generator=generator))
        centers = torch.cat([centers, points[index, :1]])
    for _ in range(rounds):
        cluster, members, _ = _nearest(points, centers)
        sums = torch.zeros_like(centers).index_add_(0, cluster, members)
        sizes = torch.bincount(cluster, minlength=count)[:, None]
        centers = torch.where(sizes > 0, sums / sizes.clamp(min=1), centers)
    return centers


@torch.no_grad()
def seed_objects(model: Generative, images: Tensor) -> None:
    """Initialize the lowest objects from the parts of these images. images [N,C,H,W]"""
    frames = rotations(model.options.frames, images)
    rows = []
    for batch in images.split(500):
        views = [rotate(batch, inverse(f).expand(len(batch), 2, 3)) for f in frames]
        rows.append(torch.stack([model.infer(v)[0].mean.flatten(1) for v in views], 1))
    points = torch.cat(rows)
    arrangement = model.process.arrangements[-1]
    assert isinstance(arrangement, Arrangement)
    parts, objects = arrangement.share.shape
    centers = centers_of(points, objects)
    arrangement.place.copy_(centers.view(objects, parts, 2, 3).transpose(0, 1))
    cluster, members, _ = _nearest(points, centers)
    errors = (members - centers[cluster]).square().view(-1, parts, 6).mean(-1)
    sums = errors.new_zeros(objects, parts).index_add_(0, cluster, errors)
    sizes = torch.bincount(cluster, minlength=objects)[:, None].clamp(min=1)
    std = ((sums / sizes).sqrt().T - arrangement.min_std).clamp(min=0.02)
    arrangement.spread.copy_(std.expm1().log())
