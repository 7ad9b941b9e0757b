"""Templates that affine poses place on a canvas in layers, batched over images and parts.

    pose X [2,3]       template coordinates -> image coordinates, both from -1 to 1
    opacity a_i        presence_i times the template's opacity, at each pixel
    image              sum_i a_i color_i prod_{m>i} (1 - a_m): later parts on top, black background

Sampling is bilinear, and zero outside a template. Implementations: a kernel on a GPU
(`kernels/templates.py`), `grid_sample` on a CPU, and hat functions and products in compiled and
exported graphs, which every exporter supports.
"""

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn import functional as F

from torchcaps.errors import TorchcapsError
from torchcaps.functional import small_product
from torchcaps.kernels import why_no_kernel
from torchcaps.kernels.ops import LARGEST_TEMPLATE  # also registers the operator
from torchcaps.routing import Impl

SMALLEST = 1e-2
"""Smallest absolute determinant in the inverse of a pose."""


def compose(outer: Tensor, inner: Tensor) -> Tensor:
    """Compose affine maps, inner first. [...,2,3] x [...,2,3] -> [...,2,3]"""
    return small_product(outer[..., :2], inner) + F.pad(outer[..., 2:], (2, 0))


def inverse(poses: Tensor) -> Tensor:
    """Inverse of affine maps [...,2,3]; nearly singular maps use the determinant SMALLEST."""
    a, b, x = poses[..., 0, :].unbind(-1)
    c, d, y = poses[..., 1, :].unbind(-1)
    det = a * d - b * c
    det = torch.where(det < 0, det.clamp(max=-SMALLEST), det.clamp(min=SMALLEST))
    rows = [d, -b, b * y - d * x, -c, a, c * x - a * y]
    return (torch.stack(rows, -1) / det[..., None]).unflatten(-1, (2, 3))


def hats(at: Tensor, side: int) -> Tensor:
    """Bilinear weights of a row of pixels at coordinates from -1 to 1. [...] -> [...,side]"""
    position = (at + 1) * (side / 2) - 0.5
    pixels = torch.arange(side, device=at.device, dtype=at.dtype)
    return F.relu(1 - (position[..., None] - pixels).abs())


def canvas(side: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """x and y of every pixel of a square image, from -1 to 1, row by row. -> [HW], [HW]"""
    line = (2 * torch.arange(side, device=like.device, dtype=like.dtype) + 1) / side - 1
    return line.repeat(side), line.repeat_interleave(side)


def _why_not(templates: Tensor, poses: Tensor) -> str:
    """Reason why the kernel does not support these tensors; empty if it does."""
    if reason := why_no_kernel(poses.device):
        return reason
    if (templates.dtype, poses.dtype) != (torch.float32, torch.float32):
        return f"templates of {templates.dtype} and poses of {poses.dtype} are not float32"
    if templates.shape[-1] > LARGEST_TEMPLATE:
        return f"a template has more than {LARGEST_TEMPLATE} rows"
    return ""


def warped(
    templates: Tensor,
    poses: Tensor,
    side: int,
    *,
    align_corners: bool = False,
    impl: Impl = "auto",
) -> Tensor:
    """Place templates by their poses. [I,C,S,S], [B,I,2,3] -> [B,I,C,side,side]

    align_corners: -1 and 1 are the centers of the outermost pixels, of canvas and templates
    """
    reason = _why_not(templates, poses)
    if reason and impl == "triton":
        raise TorchcapsError(f"impl='triton': {reason}.")
    back = inverse(poses)
    if align_corners:
        size = templates.shape[-1]
        shrink, grow = (size - 1) / size, side / (side - 1)
        back = torch.cat([shrink * grow * back[..., :2], shrink * back[..., 2:]], -1)
    if impl == "triton" or (impl == "auto" and poses.device.type == "cuda" and not reason):
        return torch.ops.torchcaps.place(templates, back, side)
    x, y = canvas(side, poses)
    back = back[..., None, :]  # [B,I,2,1,3]
    u, v = (back[..., n, :, 0] * x + back[..., n, :, 1] * y + back[..., n, :, 2] for n in (0, 1))
    if impl == "auto" and poses.device.type == "cpu" and not _traced():
        return _sampled(templates, u, v, side)
    size = templates.shape[-1]
    rows = torch.einsum("bips,icst->bipct", hats(v, size), templates)
    images = (rows * hats(u, size)[..., None, :]).sum(-1)
    return images.transpose(2, 3).unflatten(-1, (side, side))


def _traced() -> bool:
    """True while torch traces a graph to compile or export."""
    return torch.compiler.is_compiling() or get_proxy_mode() is not None


def _sampled(templates: Tensor, u: Tensor, v: Tensor, side: int) -> Tensor:
    """Templates sampled at coordinates u and v [B,I,HW] by `grid_sample`. -> [B,I,C,side,side]"""
    batch = u.shape[0]
    grid = torch.stack([u, v], -1).flatten(0, 1).unflatten(1, (side, side))
    images = F.grid_sample(templates.repeat(batch, 1, 1, 1), grid, align_corners=False)
    return images.unflatten(0, (-1, templates.shape[0]))


def composite(colors: Tensor, opacities: Tensor) -> Tensor:
    """Alpha-composite parts, the last on top. [B,I,C,H,W], [B,I,1,H,W] -> [B,C,H,W]"""
    opacities = opacities.clamp(max=1 - 1e-6)
    transparency = torch.log1p(-opacities)
    above = transparency.flip(1).cumsum(1).flip(1) - transparency  # of the parts on top of each
    return (opacities * colors * above.exp()).sum(1)


class Templates(nn.Module):
    """Learned color and opacity of every part, composited to an image by poses and presences.

    poses [B,I,2,3], presences [B,I] -> images [B,C,H,W]
    """

    letters = "[B,I,2,3] -> [B,C,H,W]"

    def __init__(self, num_parts: int, size: int, channels: int, image_size: int):
        super().__init__()
        self.image_size = image_size
        self.color = nn.Parameter(torch.randn(num_parts, channels, size, size) * 0.5 - 1)
        self.opacity = nn.Parameter(torch.randn(num_parts, 1, size, size) * 0.5 - 1)

    def forward(self, poses: Tensor, presences: Tensor) -> Tensor:
        with torch.autocast(poses.device.type, enabled=False):  # coordinates need float32
            poses = poses.to(self.color.dtype)
            templates = torch.cat([self.color, self.opacity], 1).sigmoid()
            placed = warped(templates, poses, self.image_size)
            opacities = presences.to(poses)[:, :, None, None, None] * placed[:, :, -1:]
            return composite(placed[:, :, :-1], opacities)
