"""`torch.ops.torchcaps.place`: templates where affine maps place them, as an operator of torch.

    place(templates [I,C,S,S], back [B,I,2,3], side) -> [B,I,C,side,side], all float32

`back` goes from the canvas to a template, both from -1 to 1. Both tensors get gradients; memory
holds them and what is drawn, no weight of any pixel.
"""

from typing import Any

import torch
from torch import Tensor

LARGEST = 64
"""The side of a template that the kernels take."""


def _check(templates: Tensor, back: Tensor, side: int) -> None:
    fits = templates.dim() == 4 and templates.shape[2] == templates.shape[3] <= LARGEST
    fits = fits and back.dim() == 4 and back.shape[1:] == (templates.shape[0], 2, 3)
    torch._check(
        fits and templates.dtype == back.dtype == torch.float32 and side > 0,
        lambda: (
            "place takes templates [I,C,S,S] and maps [B,I,2,3] of float32, S at most "
            f"{LARGEST}; not {list(templates.shape)} and {list(back.shape)}."
        ),
    )


def _options(templates: Tensor, side: int, pixels: int) -> dict[str, Any]:
    parts, channels, size, _ = templates.shape
    return {"I": parts, "C": channels, "S": size, "SIDE": side, "BP": pixels, "num_warps": 4}


@torch.library.custom_op("torchcaps::place", mutates_args=())
def place(templates: Tensor, back: Tensor, side: int) -> Tensor:
    _check(templates, back, side)
    from torchcaps.kernels import templates as kernels  # needs Triton, which a CPU build lacks
    from torchcaps.kernels.shape import cdiv

    drawn = back.new_empty((*back.shape[:2], templates.shape[1], side, side))
    o = _options(templates, side, 256)
    grid = back.shape[0] * back.shape[1], cdiv(side * side, o["BP"])
    if drawn.numel():
        with torch.cuda.device_of(back):
            kernels.place[grid](templates.contiguous(), back.contiguous(), drawn, **o)
    return drawn


@place.register_fake
def _(templates, back, side):
    _check(templates, back, side)
    return back.new_empty((*back.shape[:2], templates.shape[1], side, side))


@torch.library.custom_op("torchcaps::place_backward", mutates_args=())
def place_backward(grad: Tensor, templates: Tensor, back: Tensor) -> tuple[Tensor, Tensor]:
    from torchcaps.kernels import templates as kernels
    from torchcaps.kernels.shape import arithmetic, cdiv, pow2

    side = grad.shape[-1]
    each = back.new_empty((back.shape[0], *templates.shape))
    d_back = back.new_empty(back.shape)
    o = _options(templates, side, 128)
    o |= {"BS": max(16, pow2(templates.shape[-1])), "BLOCKS": cdiv(side * side, o["BP"])}
    o["P"] = arithmetic(back)["P"]
    grad, templates, back = (t.contiguous() for t in (grad, templates, back))
    if each.numel():
        with torch.cuda.device_of(back):
            grid = (back.shape[0] * back.shape[1],)
            kernels.place_backward[grid](grad, templates, back, each, d_back, **o)
    return each.sum(0), d_back


@place_backward.register_fake
def _(grad, templates, back):
    return templates.new_empty(templates.shape), back.new_empty(back.shape)


def _save(ctx, inputs, output):
    templates, back, _ = inputs
    ctx.save_for_backward(templates, back)


def _differentiate(ctx, grad):
    return *torch.ops.torchcaps.place_backward(grad, *ctx.saved_tensors), None


place.register_autograd(_differentiate, setup_context=_save)
