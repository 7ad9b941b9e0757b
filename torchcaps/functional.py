"""Pure tensor functions: squash, safe norm, affine maps and warps, random numbers by counter."""

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F


def in_float(sums: Tensor) -> Tensor:
    """Cast sums of votes to float32 under autocast, as the kernels do.

    >>> in_float(torch.ones(2)).dtype
    torch.float32
    """
    return sums.float() if torch.is_autocast_enabled(sums.device.type) else sums


def exact(values: Tensor) -> Tensor:
    """Cast half precision to float32; leave float32 and float64 unchanged.

    >>> exact(torch.ones(2, dtype=torch.half)).dtype
    torch.float32
    """
    return values.to(torch.promote_types(values.dtype, torch.float32))


def without_half(values: Tensor) -> Tensor:
    """Cast float16 to float32, for small constants that float16 rounds to zero.

    >>> without_half(torch.ones(2, dtype=torch.half)).dtype
    torch.float32
    """
    return values.float() if values.dtype == torch.float16 else values


def bounded_gradient(values: Tensor) -> Tensor:
    """Cast float16 to float32, with a gradient inside the range of float16.

    >>> values = torch.zeros(1, dtype=torch.half, requires_grad=True)
    >>> (1e8 * bounded_gradient(values)).sum().backward()
    >>> values.grad
    tensor([65504.], dtype=torch.float16)
    """
    wide = without_half(values)
    if wide is not values and wide.requires_grad and not torch.compiler.is_compiling():
        most = torch.finfo(values.dtype).max
        wide.register_hook(lambda gradient: gradient.clamp(-most, most))
    return wide


def log_odds(scores: Tensor) -> Tensor:
    """Convert scores in [0,1] to logits.

    A squashed length is |s|^2 / (1 + |s|^2), so its log-odds are log |s|^2. With the scores
    themselves as logits, cross entropy over ten classes could not fall below 1.46.

    >>> log_odds(torch.tensor([0.5]))
    tensor([0.])
    """
    return exact(scores).logit(1e-6)


def safe_norm(x: Tensor, dim: int = -1, keepdim: bool = False, eps: float = 1e-12) -> Tensor:
    """Euclidean length with a finite gradient at zero. x [...,D] -> [...]

    >>> safe_norm(torch.tensor([3.0, 4.0]))
    tensor(5.)
    """
    return (without_half(x).square().sum(dim, keepdim=keepdim) + eps).sqrt().to(x.dtype)


def squash(s: Tensor, dim: int = -1) -> Tensor:
    """Shrink each vector's length r to r^2 / (1 + r^2). s [...,D] -> [...,D]

    Written as s * r / (1 + r^2), which has no 0/0 at the origin.

    >>> squash(torch.tensor([3.0, 4.0])).norm()
    tensor(0.9615)
    """
    r = safe_norm(without_half(s), dim, keepdim=True)
    return (s * (r / (1 + r.square()))).to(s.dtype)


def affine_matrix(degrees: Tensor, scale: Tensor, shear: Tensor, shift: Tensor) -> Tensor:
    """Affine maps about the image center, in pixels, x to the right and y down.

    degrees [B], scale [B,2] (x, y), shear [B], shift [B,2] (x, y) -> [B,2,3]

    Applied in this order: scale, shear along x, rotation (counter-clockwise on the screen), shift.

    >>> zero, one = torch.zeros(1), torch.ones(1, 2)
    >>> matrix = affine_matrix(zero, one, zero, torch.tensor([[2.0, 1.0]]))
    >>> matrix[0, :, 2]  # two pixels to the right, one down
    tensor([2., 1.])
    """
    angle = degrees * (math.pi / 180)
    cos, sin = angle.cos(), angle.sin()
    sx, sy = scale.unbind(-1)
    # y points down, so a counter-clockwise rotation on the screen has +sin in the first row
    rows = [
        torch.stack([cos * sx, (cos * shear + sin) * sy, shift[:, 0]], -1),
        torch.stack([-sin * sx, (cos - sin * shear) * sy, shift[:, 1]], -1),
    ]
    return torch.stack(rows, 1)


def warp(
    images: Tensor,
    matrix: Tensor,
    size: int | tuple[int, int],
    outside: Literal["zeros", "border"] = "zeros",
) -> Tensor:
    """Transform each image by its affine map onto a canvas, bilinear, in one batched call.

    images [B,C,H,W] float, matrix [B,2,3] (see affine_matrix), size of the canvas, outside: black
    or the border's pixels -> [B,C,H',W']

    >>> matrix = torch.tensor([[[1.0, 0.0, 2.0], [0.0, 1.0, 0.0]]])  # two pixels to the right
    >>> warp(torch.rand(1, 1, 8, 8), matrix, 8).shape
    torch.Size([1, 1, 8, 8])
    """
    height, width = (size, size) if isinstance(size, int) else size
    linear, shift = matrix[:, :, :2], matrix[:, :, 2]
    inverse = inverse_2x2(linear)
    y = torch.arange(height, device=images.device, dtype=images.dtype) - (height - 1) / 2
    x = torch.arange(width, device=images.device, dtype=images.dtype) - (width - 1) / 2
    canvas = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1).reshape(1, -1, 2)
    source = torch.einsum("bxy,bly->blx", inverse, canvas - shift[:, None])
    extent = torch.tensor(images.shape[:1:-1], device=images.device, dtype=images.dtype)
    grid = (2 * source / extent).reshape(-1, height, width, 2)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode=outside, align_corners=False)


def inverse_2x2(m: Tensor) -> Tensor:
    """Inverse of 2x2 matrices in closed form, which also exports to graphs. [...,2,2]

    >>> inverse_2x2(2 * torch.eye(2)).diag()
    tensor([0.5000, 0.5000])
    """
    a, b, c, d = m[..., 0, 0], m[..., 0, 1], m[..., 1, 0], m[..., 1, 1]
    det = a * d - b * c
    return (
        torch.stack([torch.stack([d, -b], -1), torch.stack([-c, a], -1)], -2) / det[..., None, None]
    )


def inverse_3x3(m: Tensor) -> Tensor:
    """Inverse of 3x3 matrices by cross products of their rows. [...,3,3]

    >>> inverse_3x3(2 * torch.eye(3)).diag()
    tensor([0.5000, 0.5000, 0.5000])
    """
    a, b, c = m.unbind(-2)
    columns = [torch.linalg.cross(b, c), torch.linalg.cross(c, a), torch.linalg.cross(a, b)]
    det = (a * columns[0]).sum(-1)
    return torch.stack(columns, -1) / det[..., None, None]


def small_product(a: Tensor, b: Tensor) -> Tensor:
    """Product of small matrices. [...,P,Q], [...,Q,R] -> [...,P,R]

    Written out: for thousands of small matrices it is faster than matmul, and compilers fuse it.

    >>> small_product(torch.rand(5, 2, 3), torch.rand(5, 3, 4)).shape
    torch.Size([5, 2, 4])
    """
    return (a[..., None] * b[..., None, :, :]).sum(-2)


def translate(images: Tensor, shift: Tensor, size: tuple[int, int] | None = None) -> Tensor:
    """Move each image by whole pixels, (right, down), on a black canvas; exact, any dtype.

    images [B,C,H,W], shift [B,2] integers, size of the canvas (default: the image's) ->
    [B,C,H',W']. The canvas is centered on the image; an odd difference leaves the extra row below.

    >>> translate(torch.rand(1, 1, 8, 8), torch.tensor([[2, 1]])).shape
    torch.Size([1, 1, 8, 8])
    """
    _, _, height, width = images.shape
    out_h, out_w = size or (height, width)
    y = torch.arange(out_h, device=images.device) - (out_h - height) // 2
    x = torch.arange(out_w, device=images.device) - (out_w - width) // 2
    rows, columns = y - shift[:, 1:], x - shift[:, :1]
    inside_y, inside_x = (rows >= 0) & (rows < height), (columns >= 0) & (columns < width)
    inside = inside_y[:, :, None] & inside_x[:, None]
    source = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None]
    flat = images.flatten(2)
    index = source.flatten(1)[:, None].expand(-1, flat.shape[1], -1)
    moved = flat.gather(2, index).unflatten(2, (out_h, out_w))
    return moved * inside[:, None].to(moved.dtype)


_GOLDEN, _MIX1, _MIX2 = (
    c - (1 << 64) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def _mix(z: Tensor) -> Tensor:
    """The finalizer of splitmix64 on wrapping int64; bit-identical on every device."""
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * _MIX1
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * _MIX2
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


def counter_uniform(seed: int, counter: Tensor, num: int) -> Tensor:
    """Uniform random numbers in [0,1), a function of (seed, counter, column) only.

    counter [B] int64 -> [B,num] float32

    No generator state: sample n of a stream is the same on CPU and GPU, for any batch size and
    rank, before and after a resume.

    >>> first = counter_uniform(0, torch.arange(3), 2)
    >>> torch.equal(first[2:], counter_uniform(0, torch.tensor([2]), 2))
    True
    """
    column = torch.arange(1, num + 1, device=counter.device) * _GOLDEN
    seed_bits = (seed * 0xD1342543DE82EF95 + 0x632BE59BD9B4E019) & ((1 << 64) - 1)
    seed_bits -= (seed_bits >> 63) << 64
    bits = _mix(_mix(counter ^ seed_bits)[:, None] + column)
    return ((bits >> 40) & 0xFFFFFF).to(torch.float32) * 2.0**-24
