"""Ways to raise the bound of each image by its own latent numbers; images do not know each other.

    adam        all numbers, a step along the bound's slope
    lbfgs       all numbers, a quasi-Newton step with its own length for every image
    levenberg   poses of parts by damped Gauss-Newton steps with the renderer's exact Jacobian, the
                pull of their objects as a quadratic; presences and objects stay

Each yields layers and their bounds [B], the start's first, without an end.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from torchcaps.layers.arrangement import Arrangement
from torchcaps.layers.templates import Templates, canvas, compose, hats, inverse
from torchcaps.models.generative import Generative
from torchcaps.models.process import Layer

Found = tuple[list[Layer], Tensor]
Method = Callable[[Generative, Tensor, list[Layer], Tensor | None, float], Iterator[Found]]


def bounds(
    model: Generative, images: Tensor, layers: list[Layer], turns: Tensor | None = None
) -> Tensor:
    """The bound of each image at these latent numbers. -> [B]"""
    return torch.stack(list(model.bound_of(images, layers, turns=turns).terms.values())).sum(0)


class Numbers:
    """All latent numbers of an image as one row, and back."""

    def __init__(self, model: Generative, start: list[Layer]):
        self.tau = model.options.tau
        self.stds = [layer.std for layer in start]
        self.counts = [layer.location.shape[1] for layer in start]

    def flat(self, layers: list[Layer]) -> Tensor:
        """-> [B,7(I+J)]"""
        return torch.cat([t.flatten(1) for x in layers for t in (x.location, x.mean)], 1)

    def layers(self, flat: Tensor) -> list[Layer]:
        made, sizes = [], [size for count in self.counts for size in (count, 6 * count)]
        parts = flat.split(sizes, 1)
        for place, pose, std in zip(parts[::2], parts[1::2], self.stds, strict=True):
            mean = pose.unflatten(1, (-1, 2, 3))
            made.append(Layer(place, mean, std, place / self.tau, mean))
        return made


def adam(
    model: Generative, images: Tensor, start: list[Layer], turns: Tensor | None, lr: float
) -> Iterator[Found]:
    numbers = Numbers(model, start)
    flat = numbers.flat(start).detach().clone().requires_grad_()
    search = torch.optim.Adam([flat], lr)
    while True:
        with torch.enable_grad():
            found = bounds(model, images, numbers.layers(flat), turns)
            (flat.grad,) = torch.autograd.grad(-found.sum(), flat)
        yield numbers.layers(flat.detach().clone()), found.detach()
        search.step()


def lbfgs(
    model: Generative, images: Tensor, start: list[Layer], turns: Tensor | None, lr: float
) -> Iterator[Found]:
    """Ten pairs of memory; of each image the longest step of ten halvings that rises enough.

    lr: the length of the first step, whose direction is the slope
    """
    numbers = Numbers(model, start)

    def height(flat: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            flat = flat.detach().requires_grad_()
            found = bounds(model, images, numbers.layers(flat), turns)
            (slope,) = torch.autograd.grad(found.sum(), flat)
        return found.detach(), slope

    flat = numbers.flat(start).detach()
    found, slope = height(flat)
    memory: list[tuple[Tensor, Tensor, Tensor]] = []
    while True:
        yield numbers.layers(flat), found
        direction = _two_loops(slope, memory)
        rise = (direction * slope).sum(1)
        astray = rise <= 0
        direction = torch.where(astray[:, None], slope, direction)
        rise = torch.where(astray, slope.square().sum(1), rise)
        length = torch.ones_like(rise)
        if not memory:
            length = lr / direction.norm(dim=1).clamp(min=1e-12)
        done = torch.zeros_like(astray)
        after, best, new_slope = flat, found, slope
        for _ in range(10):
            tried = flat + length[:, None] * direction
            there, its_slope = height(tried)
            enough = ~done & (there >= found + 1e-4 * length * rise)
            after = torch.where(enough[:, None], tried, after)
            best = torch.where(enough, there, best)
            new_slope = torch.where(enough[:, None], its_slope, new_slope)
            done |= enough
            if bool(done.all()):
                break
            length = torch.where(done, length, length / 2)
        moved, change = after - flat, slope - new_slope
        curved = (moved * change).sum(1)
        # of images that stood still, or where the slope rose, the pair says nothing
        usable = curved > 1e-10
        inverse_of = torch.where(usable, 1 / curved.clamp(min=1e-10), 0.0)
        memory = [*memory[-9:], (moved, change, inverse_of)]
        flat, found, slope = after, best, new_slope


def _two_loops(slope: Tensor, memory: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """The inverse of the remembered curvature times the slope, image by image."""
    direction, used = slope, []
    for moved, change, scale in reversed(memory):
        share = scale * (moved * direction).sum(1)
        direction = direction - share[:, None] * change
        used.append(share)
    if memory:
        moved, change, scale = memory[-1]
        size = change.square().sum(1)
        known = (scale > 0) & (size > 0)
        factor = torch.where(known, (moved * change).sum(1) / size.clamp(min=1e-20), 1.0)
        direction = factor[:, None] * direction
    for (moved, change, scale), share in zip(memory, reversed(used), strict=True):
        direction = direction + moved * (share - scale * (change * direction).sum(1))[:, None]
    return direction


def rendered(templates: Templates, poses: Tensor, presences: Tensor) -> tuple[Tensor, Tensor]:
    """The image that parts make [B,C,P], and its slope in every pose [B,C,P,I,2,3].

    With a_i the opacity of part i, E_i = prod_{m>i} (1 - a_m) what shows through the parts above,
    and b_i the colour below: dP/dcolour_i = a_i E_i, dP/da_i = E_i (colour_i - b_i). A place u of
    the template moves by -L^-1 dX [u,1] when the pose X = [L|x] does.
    """
    size, side = templates.colour.shape[-1], templates.image_size
    both = torch.cat([templates.colour, templates.opacity], 1).sigmoid()
    x, y = canvas(side, poses)
    back = inverse(poses)
    u, v = (back[..., n, :1] * x + back[..., n, 1:2] * y + back[..., n, 2:] for n in (0, 1))
    (across, slope_u), (down, slope_v) = (_slopes(at, size) for at in (u, v))

    def at(rows: Tensor, columns: Tensor) -> Tensor:
        return torch.einsum("bips,icst,bipt->bicp", rows, both, columns)

    drawn, by_u, by_v = at(down, across), at(down, slope_u), at(slope_v, across)
    alpha = (presences[:, :, None, None] * drawn[:, :, -1:]).clamp(max=1 - 1e-6)
    through = torch.log1p(-alpha)
    above = (through.flip(1).cumsum(1).flip(1) - through).exp()
    shown = alpha * drawn[:, :, :-1] * above
    # what is below part i, seen without the parts from i on
    below = (shown.cumsum(1) - shown) / (above * (1 - alpha))
    by_colour, by_alpha = alpha * above, above * (drawn[:, :, :-1] - below)
    by_alpha = by_alpha * presences[:, :, None, None]
    slopes = torch.stack(
        [by_colour * d[:, :, :-1] + by_alpha * d[:, :, -1:] for d in (by_u, by_v)], -1
    )
    moved = -torch.einsum("bicpk,bikl->bicpl", slopes, back[..., :2])
    place = torch.stack([u, v, torch.ones_like(u)], -1)
    jacobian = torch.einsum("bicpl,bipm->bcpilm", moved, place)
    return shown.sum(1), jacobian


def _slopes(at: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """Bilinear weights of a row of pixels, and how they change with the place."""
    weights = hats(at, side)
    place = (at + 1) * (side / 2) - 0.5
    apart = place[..., None] - torch.arange(side, device=at.device, dtype=at.dtype)
    return weights, torch.where(apart.abs() < 1, -apart.sign() * (side / 2), 0.0)


@torch.no_grad()
def levenberg(
    model: Generative, images: Tensor, start: list[Layer], turns: Tensor | None, lr: float
) -> Iterator[Found]:
    """lr: the first damping, as a share of the curvature; it halves after a rise, else doubles"""
    process, (low, high, *rest) = model.process, start
    arrangement = process.arrangements[-1]
    assert isinstance(arrangement, Arrangement)
    damping = torch.full((len(images),), lr, device=images.device, dtype=low.mean.dtype)
    found = bounds(model, images, start, turns)
    while True:
        yield [low, high, *rest], found
        stands = low.mean if turns is None else compose(turns[:, None], low.mean)
        drawn, jacobian = rendered(process.templates, stands, low.logits.sigmoid())
        if turns is not None:
            jacobian = torch.einsum("bkm,bcpikn->bcpimn", turns[..., :2], jacobian)
        wide = jacobian.flatten(3).flatten(1, 2) / model.options.sigma
        errors = (images.flatten(2).to(drawn) - drawn).flatten(1) / model.options.sigma
        said = process.explain([low, high, *rest])[0][0].softmax(-1)
        weight, aim = arrangement.pull(said, high.poses, low.logits, low.mean)
        weight = weight[..., None, None].expand_as(aim)
        curvature = torch.einsum("bpk,bpl->bkl", wide, wide) + torch.diag_embed(weight.flatten(1))
        slope = torch.einsum("bpk,bp->bk", wide, errors) + (weight * (aim - low.mean)).flatten(1)
        steep = curvature.diagonal(dim1=1, dim2=2)
        damped = curvature + torch.diag_embed(damping[:, None] * steep + 1e-6)
        step = torch.cholesky_solve(slope[..., None], torch.linalg.cholesky(damped))[..., 0]
        mean = low.mean + step.unflatten(1, (-1, 2, 3))
        tried = low._replace(mean=mean, poses=mean)
        there = bounds(model, images, [tried, high, *rest], turns)
        better = there > found
        kept = torch.where(better[:, None, None, None], mean, low.mean)
        low = low._replace(mean=kept, poses=kept)
        found = torch.where(better, there, found)
        damping = torch.where(better, damping / 2, damping * 2).clamp(1e-6, 1e6)


METHODS: dict[str, tuple[Method, float]] = {
    "adam": (adam, 0.01),
    "lbfgs": (lbfgs, 0.1),
    "levenberg": (levenberg, 1.0),
}
"""By name, with the rate that each takes unless it is told another."""
