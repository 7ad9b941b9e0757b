"""Templates where affine maps place them, in Triton: bilinear samples and their gradients.

A pixel at (x, y) of a canvas samples its template at (u, v) = back [x y 1], where `back` [B,I,2,3]
maps the canvas to the template; both run from -1 to 1. A sample interpolates the four nearest
entries; outside it is zero. With hats h(v), h(u) the weights of rows and columns, the gradient of a
template is sum over pixels of d h(v) h(u)^T: a matrix product.

Every entry has one writer, without atomics, so results are bit-reproducible.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchcaps.kernels.common import arithmetic, cdiv, pow2


@triton.jit
def _sample_at(back, pixel, SIDE: tl.constexpr, S: tl.constexpr):
    """Coordinates of pixels on the canvas, and their row and column in the template."""
    x = (2 * (pixel % SIDE) + 1) / SIDE - 1.0
    y = (2 * (pixel // SIDE) + 1) / SIDE - 1.0
    u = tl.load(back) * x + tl.load(back + 1) * y + tl.load(back + 2)
    v = tl.load(back + 3) * x + tl.load(back + 4) * y + tl.load(back + 5)
    # clamp just outside the template, so that the values fit an integer
    column = tl.minimum(tl.maximum((u + 1) * (S / 2) - 0.5, -2.0), S + 1.0)
    row = tl.minimum(tl.maximum((v + 1) * (S / 2) - 0.5, -2.0), S + 1.0)
    return x, y, row, column


@triton.jit
def _entry(template, row, column, mask, S: tl.constexpr):
    inside = mask & (row >= 0) & (row < S) & (column >= 0) & (column < S)
    return tl.load(template + row * S + column, inside, other=0.0)


@triton.jit
def _corners(template, row, column, mask, S: tl.constexpr):
    """The four nearest entries, top left first, and the fractions between them."""
    r, c = tl.floor(row), tl.floor(column)
    i, j = r.to(tl.int32), c.to(tl.int32)
    return (
        _entry(template, i, j, mask, S), _entry(template, i, j + 1, mask, S),
        _entry(template, i + 1, j, mask, S), _entry(template, i + 1, j + 1, mask, S),
        row - r, column - c,
    )  # fmt: skip


@triton.jit
def place(
    templates, back, images,
    I: tl.constexpr, C: tl.constexpr, S: tl.constexpr, SIDE: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """Templates placed on canvases. Grid: images x parts, blocks of pixels."""
    one = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * BP + tl.arange(0, BP)
    mask = pixel < SIDE * SIDE
    _, _, row, column = _sample_at(back + one * 6, pixel, SIDE, S)
    for k in tl.static_range(C):
        template = templates + (one % I * C + k) * (S * S)
        a, b, c, d, down, right = _corners(template, row, column, mask, S)
        above, below = a + right * (b - a), c + right * (d - c)
        to = images + (one * C + k) * (SIDE * SIDE) + pixel
        tl.store(to, above + down * (below - above), mask)


@triton.jit
def place_backward(
    grad, templates, back, d_templates, d_back,
    I: tl.constexpr, C: tl.constexpr, S: tl.constexpr, SIDE: tl.constexpr, BP: tl.constexpr,
    BS: tl.constexpr, BLOCKS: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Gradients of one image's templates and maps. Grid: images x parts."""
    one = tl.program_id(0).to(tl.int64)
    entry = tl.arange(0, BS)
    totals = ()
    for k in tl.static_range(C):
        totals = totals + (tl.zeros((BS, BS), tl.float32),)
    # gradients of u and v times x, y and 1
    zero = tl.zeros((BP,), tl.float32)
    ux, uy, u1, vx, vy, v1 = zero, zero, zero, zero, zero, zero
    for block in range(BLOCKS):
        pixel = block * BP + tl.arange(0, BP)
        mask = pixel < SIDE * SIDE
        x, y, row, column = _sample_at(back + one * 6, pixel, SIDE, S)
        rows = tl.maximum(1 - tl.abs(row[:, None] - entry[None, :]), 0.0)
        columns = tl.maximum(1 - tl.abs(column[:, None] - entry[None, :]), 0.0)
        d_u, d_v = tl.zeros((BP,), tl.float32), tl.zeros((BP,), tl.float32)
        new_totals = ()
        for k in tl.static_range(C):
            g = tl.load(grad + (one * C + k) * (SIDE * SIDE) + pixel, mask, other=0.0)
            template = templates + (one % I * C + k) * (S * S)
            a, b, c, d, down, right = _corners(template, row, column, mask, S)
            d_u += g * ((b - a) + down * ((d - c) - (b - a)))
            d_v += g * ((c - a) + right * ((d - b) - (c - a)))
            weighed = tl.trans(rows * g[:, None])
            new_totals = new_totals + (tl.dot(weighed, columns, totals[k], input_precision=P),)
        totals = new_totals
        ux, uy, u1 = ux + d_u * x, uy + d_u * y, u1 + d_u
        vx, vy, v1 = vx + d_v * x, vy + d_v * y, v1 + d_v
    half = S / 2
    to = d_back + one * 6
    tl.store(to, tl.sum(ux) * half)
    tl.store(to + 1, tl.sum(uy) * half)
    tl.store(to + 2, tl.sum(u1) * half)
    tl.store(to + 3, tl.sum(vx) * half)
    tl.store(to + 4, tl.sum(vy) * half)
    tl.store(to + 5, tl.sum(v1) * half)
    inside = (entry < S)[:, None] & (entry < S)[None, :]
    for k in tl.static_range(C):
        at = d_templates + (one * C + k) * (S * S) + entry[:, None] * S + entry[None, :]
        tl.store(at, totals[k], inside)


def _options(templates: Tensor, side: int, pixels: int) -> dict[str, Any]:
    parts, channels, size, _ = templates.shape
    return {"I": parts, "C": channels, "S": size, "SIDE": side, "BP": pixels, "num_warps": 4}


def forward(templates: Tensor, back: Tensor, side: int) -> Tensor:
    """Templates placed on canvases. -> [B,I,C,side,side]"""
    images = back.new_empty((*back.shape[:2], templates.shape[1], side, side))
    o = _options(templates, side, 256)
    grid = back.shape[0] * back.shape[1], cdiv(side * side, o["BP"])
    if images.numel():
        with torch.cuda.device_of(back):
            place[grid](templates.contiguous(), back.contiguous(), images, **o)
    return images


def backward(grad: Tensor, templates: Tensor, back: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of templates and maps. grad [B,I,C,side,side]"""
    side = grad.shape[-1]
    d_templates = back.new_empty((back.shape[0], *templates.shape))
    d_back = back.new_empty(back.shape)
    o = _options(templates, side, 128)
    o |= {"BS": max(16, pow2(templates.shape[-1])), "BLOCKS": cdiv(side * side, o["BP"])}
    o["P"] = arithmetic(back)["P"]
    grad, templates, back = (t.contiguous() for t in (grad, templates, back))
    if d_templates.numel():
        with torch.cuda.device_of(back):
            grid = (back.shape[0] * back.shape[1],)
            place_backward[grid](grad, templates, back, d_templates, d_back, **o)
    return d_templates.sum(0), d_back
