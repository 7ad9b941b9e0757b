"""Kernels as torch operators: autograd, compile, export and CUDA graphs.

`torch.ops.torchcaps.step`, the fused step of a routing, takes a grid of child poses [B,H,W,I,R*D],
transforms [N,J,D,E] (child c uses number c modulo N) and the tensors of its score. It returns sums
over children for each parent: shares [B,H',W',J], votes and squares [B,H',W',J,R*E];
log-denominators for the backward pass; and on request shares of every child before its activation
[B,H',W',J,C], without a gradient. Outputs that a score does not have are empty. `across`: shares of
a child sum to one over the parents of all windows that see it, instead of within each window; only
the kernels that form votes support it.

`torch.ops.torchcaps.combine(shares [B,C/N,J,N], poses [B,C,D], weight [N,J,D,E]) -> [B,J,E]` sums
votes with known shares, in float32. Child c uses transform c modulo N, and is number c modulo N of
group c / N of the shares, the layout in which one product with all transforms writes their logits.
All three have one dtype and get gradients; votes are never stored.

`torch.ops.torchcaps.place(templates [I,C,S,S], back [B,I,2,3], side) -> [B,I,C,side,side]` places
templates on a canvas by affine maps, all float32. `back` maps the canvas to a template, both from
-1 to 1. Both tensors get gradients; interpolation weights are never stored.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Inputs(NamedTuple):
    """Tensors of a step, or their gradients; None where the score does not use them."""

    poses: Tensor
    weight: Tensor
    activations: Tensor | None = None
    query: Tensor | None = None
    precision: Tensor | None = None
    bias: Tensor | None = None
    route_weight: Tensor | None = None
    route_bias: Tensor | None = None

    def contiguous(self) -> "Inputs":
        return Inputs(*(None if t is None else t.contiguous() for t in self))  # pyright: ignore


class Needs(NamedTuple):
    """Inputs of a step that need a gradient and are costly to differentiate."""

    poses: bool
    weight: bool
    query: bool


def _shape(poses: Tensor, weight: Tensor, window: list[int]):
    from torchcaps.kernels.common import Shape  # needs Triton, which a CPU build of torch lacks

    batch, height, width, types, dim = poses.shape
    transforms, parents, in_dim, out_dim = weight.shape
    kernel, stride, padding = window
    rows = dim // in_dim
    return Shape(
        batch, height, width, types, kernel, stride, padding, rows, in_dim, parents, out_dim,
        transforms,
    )  # fmt: skip


def _parents(poses: Tensor, weight: Tensor, window: list[int]) -> tuple[list[int], int]:
    kernel, stride, padding = window
    batch, height, width, _, dim = poses.shape
    grid = [(side + 2 * padding - kernel) // stride + 1 for side in (height, width)]
    return [batch, *grid, weight.shape[1]], dim // weight.shape[2] * weight.shape[3]


def _sees_votes(shape, score: str) -> bool:
    """True for the kernels that form votes, False for those of `attention`."""
    return score == "gauss" or (score == "dot" and shape.pose_rows > 1)


@torch.compiler.assume_constant_result
def why_not(rows: int, in_dim: int, out_dim: int) -> str:
    """Reason why a step does not fit on this GPU; empty if it does."""
    from torchcaps.kernels import plans

    return plans.why_not(rows, in_dim, out_dim)


@torch.library.custom_op("torchcaps::step", mutates_args=())
def step(
    poses: Tensor,
    weight: Tensor,
    activations: Tensor | None,
    query: Tensor | None,
    precision: Tensor | None,
    bias: Tensor | None,
    route_weight: Tensor | None,
    route_bias: Tensor | None,
    window: list[int],
    score: str,
    deterministic: bool,
    with_coupling: bool,
    across: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    shape = _shape(poses, weight, window)
    torch._check(
        not across or _sees_votes(shape, score),
        lambda: f"windows compete where votes are formed, and the score {score} forms none here.",
    )
    tensors = (poses, weight, activations, query, precision, bias, route_weight, route_bias)
    inputs = Inputs(*tensors).contiguous()
    with torch.cuda.device_of(poses):
        if _sees_votes(shape, score):
            from torchcaps.kernels import votes

            outputs = votes.forward(shape, score, inputs, with_coupling, across)
        else:
            from torchcaps.kernels import attention

            outputs = attention.forward(shape, score, inputs, with_coupling)
    sum0, sum1, sum2, lse, coupling = outputs
    parents, dim = _parents(poses, weight, window)
    return (
        sum0.view(parents) if sum0.numel() else sum0,
        sum1.view(*parents, dim),
        sum2.view(*parents, dim) if sum2.numel() else sum2,
        lse,
        coupling.view(*parents, shape.children) if with_coupling else coupling,
    )


@step.register_fake
def _(poses, weight, activations, *rest):
    *_, window, score, _deterministic, with_coupling, _across = rest
    parents, dim = _parents(poses, weight, window)
    shape = _shape(poses, weight, window)
    new = lambda *size: poses.new_empty(size, dtype=torch.float32)  # noqa: E731
    return (
        new(*parents) if activations is not None else new(0),
        new(*parents, dim),
        new(*parents, dim) if score == "gauss" else new(0),
        new(shape.rows, shape.children) if score != "uniform" else new(0),
        new(*parents, shape.children) if with_coupling else new(0),
    )


@torch.library.custom_op("torchcaps::step_backward", mutates_args=())
def step_backward(
    grad0: Tensor,
    grad1: Tensor,
    grad2: Tensor,
    lse: Tensor,
    poses: Tensor,
    weight: Tensor,
    activations: Tensor | None,
    query: Tensor | None,
    precision: Tensor | None,
    bias: Tensor | None,
    route_weight: Tensor | None,
    route_bias: Tensor | None,
    window: list[int],
    score: str,
    deterministic: bool,
    across: bool,
    needed: list[bool],
) -> list[Tensor]:
    tensors = (poses, weight, activations, query, precision, bias, route_weight, route_bias)
    inputs = Inputs(*tensors).contiguous()
    sum_grads = grad0.contiguous(), grad1.contiguous(), grad2.contiguous()
    shape = _shape(poses, weight, window)
    needs = Needs(needed[0], needed[1], needed[3])
    with torch.cuda.device_of(poses):
        if _sees_votes(shape, score):
            from torchcaps.kernels import votes

            grads = votes.backward(
                shape, score, deterministic, sum_grads, lse, inputs, across, needs
            )
        else:
            from torchcaps.kernels import attention, tables

            if tables.pays(shape, score, inputs):
                grads = tables.backward(shape, sum_grads[1], lse, inputs, needs)
            else:
                grads = attention.backward(
                    shape, score, deterministic, sum_grads[:2], lse, inputs, needs
                )
    return [
        poses.new_empty(0, dtype=torch.float32)
        if t is None or g is None or not need
        else g.to(t.dtype).reshape(t.shape).contiguous()
        for g, t, need in zip(grads, inputs, needed, strict=True)
    ]


@step_backward.register_fake
def _(grad0, grad1, grad2, lse, *rest):
    poses, inputs, needed = rest[0], rest[:8], rest[-1]
    return [
        t.new_empty(t.shape) if t is not None and need else poses.new_empty(0, dtype=torch.float32)
        for t, need in zip(inputs, needed, strict=True)
    ]


def _save(ctx, inputs, output):
    ctx.save_for_backward(output[3], *inputs[:8])
    *options, _with_coupling, across = inputs[8:]
    ctx.options = (*options, across)


def _differentiate(ctx, grad0, grad1, grad2, *_):
    lse, *tensors = ctx.saved_tensors
    needed = list(ctx.needs_input_grad[:8])
    grads = torch.ops.torchcaps.step_backward(
        grad0, grad1, grad2, lse, *tensors, *ctx.options, needed
    )
    grads = (g if need else None for g, need in zip(grads, needed, strict=True))
    return *grads, *[None] * 5


step.register_autograd(_differentiate, setup_context=_save)


def _check_combine(shares: Tensor, poses: Tensor, weight: Tensor) -> None:
    batch, children, in_dim = poses.shape
    num, parents = weight.shape[:2]
    groups = shares.shape == (batch, children // num, parents, num)
    fits = groups and weight.shape[2] == in_dim and children % num == 0
    same_dtype = shares.dtype == poses.dtype == weight.dtype
    torch._check(
        fits and same_dtype,
        lambda: (
            "combine takes shares [B,C/N,J,N], poses [B,C,D] and weight [N,J,D,E] of one dtype, N "
            f"a divisor of C; got {[list(t.shape) for t in (shares, poses, weight)]}."
        ),
    )


@torch.library.custom_op("torchcaps::combine", mutates_args=())
def combine(shares: Tensor, poses: Tensor, weight: Tensor) -> Tensor:
    _check_combine(shares, poses, weight)
    from torchcaps.kernels import (
        shares as kernels,  # needs Triton, which a CPU build of torch lacks
    )

    with torch.cuda.device_of(poses):
        return kernels.forward(*(t.contiguous() for t in (shares, poses, weight)))


@combine.register_fake
def _(shares, poses, weight):
    _check_combine(shares, poses, weight)
    return poses.new_empty((poses.shape[0], *weight.shape[1::2]), dtype=torch.float32)


@torch.library.custom_op("torchcaps::combine_backward", mutates_args=())
def combine_backward(
    grad: Tensor, shares: Tensor, poses: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    from torchcaps.kernels import shares as kernels

    with torch.cuda.device_of(poses):
        return kernels.backward(*(t.contiguous() for t in (grad, shares, poses, weight)))


@combine_backward.register_fake
def _(grad, shares, poses, weight):
    return tuple(t.new_empty(t.shape) for t in (shares, poses, weight))


def _save_combine(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _differentiate_combine(ctx, grad):
    # cast here, so that a compiler can fuse it with the operation before
    shares, poses, weight = ctx.saved_tensors
    return torch.ops.torchcaps.combine_backward(grad.to(poses.dtype), shares, poses, weight)


combine.register_autograd(_differentiate_combine, setup_context=_save_combine)


@torch.library.custom_op("torchcaps::self_route", mutates_args=())
def self_route(
    poses: Tensor,
    activations: Tensor,
    weight: Tensor,
    route_weight: Tensor,
    route_bias: Tensor,
    window: list[int],
) -> tuple[Tensor, Tensor, Tensor]:
    from torchcaps.kernels import routes

    shape = _shape(poses, weight, window)
    inputs = Inputs(
        poses, weight, activations, route_weight=route_weight, route_bias=route_bias
    ).contiguous()
    with torch.cuda.device_of(poses):
        mass, sums, shares = routes.forward(shape, inputs)
    parents, dim = _parents(poses, weight, window)
    return mass.view(parents), sums.view(*parents, dim), shares


@self_route.register_fake
def _(poses, activations, weight, route_weight, route_bias, window):
    from torchcaps.kernels import routes

    parents, dim = _parents(poses, weight, window)
    new = lambda *size: poses.new_empty(size, dtype=torch.float32)  # noqa: E731
    shares = routes.stored(_shape(poses, weight, window), poses)
    return new(*parents), new(*parents, dim), shares


@torch.library.custom_op("torchcaps::self_route_backward", mutates_args=())
def self_route_backward(
    grad0: Tensor,
    grad1: Tensor,
    shares: Tensor,
    poses: Tensor,
    activations: Tensor,
    weight: Tensor,
    route_weight: Tensor,
    route_bias: Tensor,
    window: list[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    from torchcaps.kernels import routes

    shape = _shape(poses, weight, window)
    inputs = Inputs(
        poses, weight, activations, route_weight=route_weight, route_bias=route_bias
    ).contiguous()
    grads = grad0.contiguous(), grad1.contiguous()
    with torch.cuda.device_of(poses):
        grad = routes.backward(shape, grads, shares, inputs)
    order = (grad.poses, grad.activations, grad.weight, grad.route_weight, grad.route_bias)
    like = (poses, activations, weight, route_weight, route_bias)
    pairs = zip(order, like, strict=True)
    return tuple(g.to(t.dtype).reshape(t.shape).contiguous() for g, t in pairs)  # pyright: ignore


@self_route_backward.register_fake
def _(grad0, grad1, shares, *rest):
    return tuple(t.new_empty(t.shape) for t in rest[:5])


def _save_route(ctx, inputs, output):
    ctx.save_for_backward(output[2], *inputs[:5])
    ctx.window = inputs[5]


def _differentiate_route(ctx, grad0, grad1, *_):
    # cast here, so that a compiler can fuse it with the operation before
    shares, poses, *rest = ctx.saved_tensors
    grads = torch.ops.torchcaps.self_route_backward(
        grad0, grad1.to(poses.dtype), shares, poses, *rest, ctx.window
    )
    return *grads, None


self_route.register_autograd(_differentiate_route, setup_context=_save_route)


@torch.library.custom_op("torchcaps::attend", mutates_args=())
def attend(poses: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
    _check_attend(poses, query)
    from torchcaps.kernels import positions

    with torch.cuda.device_of(poses):
        return positions.forward(poses.contiguous(), query.contiguous())


def _check_attend(poses: Tensor, query: Tensor) -> None:
    batch, _, types, dim = poses.shape
    fits = query.dim() == 4 and (*query.shape[:2], query.shape[3]) == (batch, types, dim)
    torch._check(
        fits and query.dtype == torch.float32,
        lambda: (
            "attend takes poses [B,P,N,D] and a float32 query [B,N,J,D]; "
            f"got {[list(t.shape) for t in (poses, query)]}."
        ),
    )


@attend.register_fake
def _(poses, query):
    _check_attend(poses, query)
    batch, positions, types, _ = poses.shape
    return query.new_empty(query.shape), query.new_empty((2, batch, types, positions))


@torch.library.custom_op("torchcaps::attend_backward", mutates_args=())
def attend_backward(
    grad: Tensor, poses: Tensor, query: Tensor, stats: Tensor
) -> tuple[Tensor, Tensor]:
    from torchcaps.kernels import positions

    with torch.cuda.device_of(poses):
        tensors = (t.contiguous() for t in (grad, poses, query, stats))
        return positions.backward(*tensors)


@attend_backward.register_fake
def _(grad, poses, query, stats):
    return poses.new_empty(poses.shape), query.new_empty(query.shape)


def _save_attend(ctx, inputs, output):
    ctx.save_for_backward(*inputs, output[1])


def _differentiate_attend(ctx, grad, _):
    return torch.ops.torchcaps.attend_backward(grad, *ctx.saved_tensors)


attend.register_autograd(_differentiate_attend, setup_context=_save_attend)


LARGEST_TEMPLATE = 64
"""Largest side of a template for the kernels."""


def _check_place(templates: Tensor, back: Tensor, side: int) -> None:
    fits = templates.dim() == 4 and templates.shape[2] == templates.shape[3] <= LARGEST_TEMPLATE
    fits = fits and back.dim() == 4 and back.shape[1:] == (templates.shape[0], 2, 3)
    torch._check(
        fits and templates.dtype == back.dtype == torch.float32 and side > 0,
        lambda: (
            "place takes templates [I,C,S,S] and maps [B,I,2,3] of float32, S at most "
            f"{LARGEST_TEMPLATE}; got {list(templates.shape)} and {list(back.shape)}."
        ),
    )


@torch.library.custom_op("torchcaps::place", mutates_args=())
def place(templates: Tensor, back: Tensor, side: int) -> Tensor:
    _check_place(templates, back, side)
    from torchcaps.kernels import templates as kernels

    return kernels.forward(templates, back, side)


@place.register_fake
def _(templates, back, side):
    _check_place(templates, back, side)
    return back.new_empty((*back.shape[:2], templates.shape[1], side, side))


@torch.library.custom_op("torchcaps::place_backward", mutates_args=())
def place_backward(grad: Tensor, templates: Tensor, back: Tensor) -> tuple[Tensor, Tensor]:
    from torchcaps.kernels import templates as kernels

    return kernels.backward(grad, templates, back)


@place_backward.register_fake
def _(grad, templates, back):
    return templates.new_empty(templates.shape), back.new_empty(back.shape)


def _save_place(ctx, inputs, output):
    templates, back, _ = inputs
    ctx.save_for_backward(templates, back)


def _differentiate_place(ctx, grad):
    return *torch.ops.torchcaps.place_backward(grad, *ctx.saved_tensors), None


place.register_autograd(_differentiate_place, setup_context=_save_place)
