"""Templates where affine maps place them, in Triton: bilinear samples and their gradients.

A pixel at (x, y) of a canvas looks at (u, v) = back [x y 1] of its template, where `back` [B,I,2,3]
goes from the canvas to the template; both run from -1 to 1. The sample is of the four nearest
entries, nothing outside. With hats h(v), h(u) the weights of rows and columns, the gradient of a
template is sum over pixels of d h(v) h(u)^T: a matrix product.

Each program owns what it writes, so no gradient is added by atomics and runs agree to the bit.
"""

import triton
import triton.language as tl


@triton.jit
def _look(back, pixel, SIDE: tl.constexpr, S: tl.constexpr):
    """Coordinates of pixels on the canvas, and where they look, in entries of the template."""
    x = (2 * (pixel % SIDE) + 1) / SIDE - 1.0
    y = (2 * (pixel // SIDE) + 1) / SIDE - 1.0
    u = tl.load(back) * x + tl.load(back + 1) * y + tl.load(back + 2)
    v = tl.load(back + 3) * x + tl.load(back + 4) * y + tl.load(back + 5)
    # far outside is as good as just outside, and fits an integer
    column = tl.minimum(tl.maximum((u + 1) * (S / 2) - 0.5, -2.0), S + 1.0)
    row = tl.minimum(tl.maximum((v + 1) * (S / 2) - 0.5, -2.0), S + 1.0)
    return x, y, row, column


@triton.jit
def _entry(template, row, column, there, S: tl.constexpr):
    inside = there & (row >= 0) & (row < S) & (column >= 0) & (column < S)
    return tl.load(template + row * S + column, inside, other=0.0)


@triton.jit
def _corners(template, row, column, there, S: tl.constexpr):
    """The four nearest entries, above left first, and how far between them."""
    r, c = tl.floor(row), tl.floor(column)
    i, j = r.to(tl.int32), c.to(tl.int32)
    return (
        _entry(template, i, j, there, S), _entry(template, i, j + 1, there, S),
        _entry(template, i + 1, j, there, S), _entry(template, i + 1, j + 1, there, S),
        row - r, column - c,
    )  # fmt: skip


@triton.jit
def place(
    templates, back, drawn,
    I: tl.constexpr, C: tl.constexpr, S: tl.constexpr, SIDE: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """Grid: images x parts, blocks of pixels."""
    one = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * BP + tl.arange(0, BP)
    there = pixel < SIDE * SIDE
    _, _, row, column = _look(back + one * 6, pixel, SIDE, S)
    for k in tl.static_range(C):
        template = templates + (one % I * C + k) * (S * S)
        a, b, c, d, down, right = _corners(template, row, column, there, S)
        above, below = a + right * (b - a), c + right * (d - c)
        to = drawn + (one * C + k) * (SIDE * SIDE) + pixel
        tl.store(to, above + down * (below - above), there)


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
    ux, uy, u1 = (
        tl.zeros((BP,), tl.float32),
        tl.zeros((BP,), tl.float32),
        tl.zeros((BP,), tl.float32),
    )
    vx, vy, v1 = (
        tl.zeros((BP,), tl.float32),
        tl.zeros((BP,), tl.float32),
        tl.zeros((BP,), tl.float32),
    )
    for block in range(BLOCKS):
        pixel = block * BP + tl.arange(0, BP)
        there = pixel < SIDE * SIDE
        x, y, row, column = _look(back + one * 6, pixel, SIDE, S)
        rows = tl.maximum(1 - tl.abs(row[:, None] - entry[None, :]), 0.0)
        columns = tl.maximum(1 - tl.abs(column[:, None] - entry[None, :]), 0.0)
        d_u, d_v = tl.zeros((BP,), tl.float32), tl.zeros((BP,), tl.float32)
        added = ()
        for k in tl.static_range(C):
            g = tl.load(grad + (one * C + k) * (SIDE * SIDE) + pixel, there, other=0.0)
            template = templates + (one % I * C + k) * (S * S)
            a, b, c, d, down, right = _corners(template, row, column, there, S)
            d_u += g * ((b - a) + down * ((d - c) - (b - a)))
            d_v += g * ((c - a) + right * ((d - b) - (c - a)))
            part = tl.trans(rows * g[:, None])
            added = added + (tl.dot(part, columns, totals[k], input_precision=P),)
        totals = added
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
    kept = (entry < S)[:, None] & (entry < S)[None, :]
    for k in tl.static_range(C):
        at = d_templates + (one * C + k) * (S * S) + entry[:, None] * S + entry[None, :]
        tl.store(at, totals[k], kept)
