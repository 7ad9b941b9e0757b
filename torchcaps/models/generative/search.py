"""Optimizers that maximize the bound of each image over its latent variables, image by image.

    adam        all latent variables, gradient steps
    lbfgs       all latent variables, a quasi-Newton step with its own step size for every image
    levenberg   poses of parts by damped Gauss-Newton steps with the renderer's exact Jacobian and a
                quadratic approximation of the prior; presences and objects stay fixed

Each is an endless generator of layers and their bounds [B], starting with the initial ones.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from torchcaps.layers.templates import Templates, canvas, hats, inverse
from torchcaps.models.generative.arrangement import Arrangement
from torchcaps.models.generative.model import Generative
from torchcaps.models.generative.process import Layer, rotated

State = tuple[list[Layer], Tensor]
Method = Callable[[Generative, Tensor, list[Layer], Tensor | None, float], Iterator[State]]


def bounds(
    model: Generative, images: Tensor, layers: list[Layer], turns: Tensor | None = None
) -> Tensor:
    """Bound of each image at these latent variables. -> [B]"""
    return torch.stack(list(model.bound_of(images, layers, turns=turns).terms.values())).sum(0)


class Numbers:
    """Conversion between the latent variables of an image and one flat row."""

    def __init__(self, model: Generative, start: list[Layer]):
        self.tau = model.options.tau
        self.stds = [layer.std for layer in start]
        self.counts = [layer.location.shape[1] for layer in start]

    def flat(self, layers: list[Layer]) -> Tensor:
        """-> [B,7(I+J)]"""
        return torch.cat([t.flatten(1) for x in layers for t in (x.location, x.mean)], 1)

    def layers(self, flat: Tensor) -> list[Layer]:
        layers, sizes = [], [size for count in self.counts for size in (count, 6 * count)]
        columns = flat.split(sizes, 1)
        for location, pose, std in zip(columns[::2], columns[1::2], self.stds, strict=True):
            mean = pose.unflatten(1, (-1, 2, 3))
            layers.append(Layer(location, mean, std, location / self.tau, mean))
        return layers


def adam(
    model: Generative, images: Tensor, start: list[Layer], turns: Tensor | None, lr: float
) -> Iterator[State]:
    numbers = Numbers(model, start)
    flat = numbers.flat(start).detach().clone().requires_grad_()
    optimizer = torch.optim.Adam([flat], lr)
    while True:
        with torch.enable_grad():
            bound = bounds(model, images, numbers.layers(flat), turns)
            (flat.grad,) = torch.autograd.grad(-bound.sum(), flat)
        yield numbers.layers(flat.detach().clone()), bound.detach()
        optimizer.step()


def lbfgs(
    model: Generative, images: Tensor, start: list[Layer], turns: Tensor | None, lr: float
) -> Iterator[State]:
    """L-BFGS with a memory of ten; backtracking line search with ten halvings for each image.

    lr: length of the first step, which follows the gradient
    """
    numbers = Numbers(model, start)

    def evaluate(flat: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            flat = flat.detach().requires_grad_()
            bound = bounds(model, images, numbers.layers(flat), turns)
            (gradient,) = torch.autograd.grad(bound.sum(), flat)
        return bound.detach(), gradient

    flat = numbers.flat(start).detach()
    bound, gradient = evaluate(flat)
    memory: list[tuple[Tensor, Tensor, Tensor]] = []
    while True:
        yield numbers.layers(flat), bound
        direction = _two_loops(gradient, memory)
        slope = (direction * gradient).sum(1)
        descent = slope <= 0
        direction = torch.where(descent[:, None], gradient, direction)
        slope = torch.where(descent, gradient.square().sum(1), slope)
        length = torch.ones_like(slope)
        if not memory:
            length = lr / direction.norm(dim=1).clamp(min=1e-12)
        done = torch.zeros_like(descent)
        next_flat, next_bound, next_gradient = flat, bound, gradient
        for _ in range(10):
            trial = flat + length[:, None] * direction
            trial_bound, trial_gradient = evaluate(trial)
            accepted = ~done & (trial_bound >= bound + 1e-4 * length * slope)
            next_flat = torch.where(accepted[:, None], trial, next_flat)
            next_bound = torch.where(accepted, trial_bound, next_bound)
            next_gradient = torch.where(accepted[:, None], trial_gradient, next_gradient)
            done |= accepted
            if bool(done.all()):
                break
            length = torch.where(done, length, length / 2)
        step, change = next_flat - flat, gradient - next_gradient
        curvature = (step * change).sum(1)
        # a pair without positive curvature (no step, or a growing gradient) counts as zero
        usable = curvature > 1e-10
        scale = torch.where(usable, 1 / curvature.clamp(min=1e-10), 0.0)
        memory = [*memory[-9:], (step, change, scale)]
        flat, bound, gradient = next_flat, next_bound, next_gradient


def _two_loops(gradient: Tensor, memory: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Inverse of the approximate Hessian times the gradient, image by image."""
    direction, factors = gradient, []
    for step, change, scale in reversed(memory):
        factor = scale * (step * direction).sum(1)
        direction = direction - factor[:, None] * change
        factors.append(factor)
    if memory:
        step, change, scale = memory[-1]
        size = change.square().sum(1)
        usable = (scale > 0) & (size > 0)
        ratio = torch.where(usable, (step * change).sum(1) / size.clamp(min=1e-20), 1.0)
        direction = ratio[:, None] * direction
    for (step, change, scale), factor in zip(memory, reversed(factors), strict=True):
        direction = direction + step * (factor - scale * (change * direction).sum(1))[:, None]
    return direction


def rendered(templates: Templates, poses: Tensor, presences: Tensor) -> tuple[Tensor, Tensor]:
    """Image of parts [B,C,P], and its Jacobian in every pose [B,C,P,I,2,3].

    With a_i the opacity of part i, E_i = prod_{m>i} (1 - a_m) the transmittance of the parts above,
    and b_i the color below: dP/dcolor_i = a_i E_i, dP/da_i = E_i (color_i - b_i). A position u of
    the template moves by -L^-1 dX [u,1] when the pose X = [L|x] does.
    """
    size, side = templates.color.shape[-1], templates.image_size
    both = torch.cat([templates.color, templates.opacity], 1).sigmoid()
    x, y = canvas(side, poses)
    back = inverse(poses)
    u, v = (back[..., n, :1] * x + back[..., n, 1:2] * y + back[..., n, 2:] for n in (0, 1))
    (across, slope_u), (down, slope_v) = (_slopes(at, size) for at in (u, v))

    def resampled(rows: Tensor, columns: Tensor) -> Tensor:
        return torch.einsum("bips,icst,bipt->bicp", rows, both, columns)

    warped = resampled(down, across)
    by_u, by_v = resampled(down, slope_u), resampled(slope_v, across)
    alpha = (presences[:, :, None, None] * warped[:, :, -1:]).clamp(max=1 - 1e-6)
    log_transmittance = torch.log1p(-alpha)
    above = (log_transmittance.flip(1).cumsum(1).flip(1) - log_transmittance).exp()
    visible = alpha * warped[:, :, :-1] * above
    # color of the parts below part i, without the parts from i on
    below = (visible.cumsum(1) - visible) / (above * (1 - alpha))
    by_color, by_alpha = alpha * above, above * (warped[:, :, :-1] - below)
    by_alpha = by_alpha * presences[:, :, None, None]
    slopes = torch.stack(
        [by_color * d[:, :, :-1] + by_alpha * d[:, :, -1:] for d in (by_u, by_v)], -1
    )
    by_position = -torch.einsum("bicpk,bikl->bicpl", slopes, back[..., :2])
    position = torch.stack([u, v, torch.ones_like(u)], -1)
    jacobian = torch.einsum("bicpl,bipm->bcpilm", by_position, position)
    return visible.sum(1), jacobian


def _slopes(at: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """Bilinear weights of a row of pixels, and their derivatives by the position."""
    weights = hats(at, side)
    position = (at + 1) * (side / 2) - 0.5
    offset = position[..., None] - torch.arange(side, device=at.device, dtype=at.dtype)
    return weights, torch.where(offset.abs() < 1, -offset.sign() * (side / 2), 0.0)


@torch.no_grad()
def levenberg(
    model: Generative, images: Tensor, start: list[Layer], turns: Tensor | None, lr: float
) -> Iterator[State]:
    """Levenberg-Marquardt steps of the poses of parts.

    lr: initial damping relative to the curvature; it halves after a success, else it doubles
    """
    process, (low, high, *rest) = model.process, start
    arrangement = process.arrangements[-1]
    assert isinstance(arrangement, Arrangement)
    damping = torch.full((len(images),), lr, device=images.device, dtype=low.mean.dtype)
    bound = bounds(model, images, start, turns)
    while True:
        yield [low, high, *rest], bound
        poses = rotated(low.mean, turns)
        image, jacobian = rendered(process.templates, poses, low.logits.sigmoid())
        if turns is not None:
            jacobian = torch.einsum("bkm,bcpikn->bcpimn", turns[..., :2], jacobian)
        scaled = jacobian.flatten(3).flatten(1, 2) / model.options.sigma
        errors = (images.flatten(2).to(image) - image).flatten(1) / model.options.sigma
        selections = process.explain([low, high, *rest])[0][0].softmax(-1)
        precision, target = arrangement.pull(selections, high.poses, low.logits, low.mean)
        precision = precision[..., None, None].expand_as(target)
        curvature = torch.einsum("bpk,bpl->bkl", scaled, scaled)
        curvature = curvature + torch.diag_embed(precision.flatten(1))
        gradient = torch.einsum("bpk,bp->bk", scaled, errors)
        gradient = gradient + (precision * (target - low.mean)).flatten(1)
        diagonal = curvature.diagonal(dim1=1, dim2=2)
        damped = curvature + torch.diag_embed(damping[:, None] * diagonal + 1e-6)
        step = torch.cholesky_solve(gradient[..., None], torch.linalg.cholesky(damped))[..., 0]
        mean = low.mean + step.unflatten(1, (-1, 2, 3))
        trial = low._replace(mean=mean, poses=mean)
        trial_bound = bounds(model, images, [trial, high, *rest], turns)
        better = trial_bound > bound
        mean = torch.where(better[:, None, None, None], mean, low.mean)
        low = low._replace(mean=mean, poses=mean)
        bound = torch.where(better, trial_bound, bound)
        damping = torch.where(better, damping / 2, damping * 2).clamp(1e-6, 1e6)


METHODS: dict[str, tuple[Method, float]] = {
    "adam": (adam, 0.01),
    "lbfgs": (lbfgs, 0.1),
    "levenberg": (levenberg, 1.0),
}
"""Optimizers by name, each with its default learning rate."""
