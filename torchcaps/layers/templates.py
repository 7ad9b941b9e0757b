"""Templates that affine poses place on a canvas, one over the other: every image and part at once.

    pose X [2,3]       template coordinates -> image coordinates, both from -1 to 1
    opacity a_i        presence_i times the template's own, at each pixel
    image              sum_i a_i colour_i prod_{m>i} (1 - a_m): later parts on top, black below all

Sampling is bilinear; outside a template there is nothing. On a GPU a kernel does it
(`kernels/templates.py`), on a CPU the operator that samples a grid, and in graphs for compilers and
other programs hat functions and products, which every exporter knows.
"""

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn import functional as F

from torchcaps.errors import TorchcapsError
from torchcaps.functional import small_product
from torchcaps.kernels import place as place  # registers the operator
from torchcaps.kernels.available import why_no_kernel
from torchcaps.routing import Impl

SMALLEST = 1e-2
"""A determinant's size is at least this when a pose is inverted."""


def compose(outer: Tensor, inner: Tensor) -> Tensor:
    """Affine maps one after the other, inner first. [...,2,3] x [...,2,3] -> [...,2,3]"""
    return small_product(outer[..., :2], inner) + F.pad(outer[..., 2:], (2, 0))


def inverse(poses: Tensor) -> Tensor:
    """The inverse of affine maps [...,2,3], of nearly singular ones that of a near map."""
    a, b, x = poses[..., 0, :].unbind(-1)
    c, d, y = poses[..., 1, :].unbind(-1)
    det = a * d - b * c
    det = torch.where(det < 0, det.clamp(max=-SMALLEST), det.clamp(min=SMALLEST))
    rows = [d, -b, b * y - d * x, -c, a, c * x - a * y]
    return (torch.stack(rows, -1) / det[..., None]).unflatten(-1, (2, 3))


def hats(at: Tensor, side: int) -> Tensor:
    """Bilinear weights of a row of pixels for places between -1 and 1. [...] -> [...,side]"""
    place = (at + 1) * (side / 2) - 0.5
    pixels = torch.arange(side, device=at.device, dtype=at.dtype)
    return F.relu(1 - (place[..., None] - pixels).abs())


def canvas(side: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """x and y of every pixel of a square image, from -1 to 1, row by row. -> [HW], [HW]"""
    line = (2 * torch.arange(side, device=like.device, dtype=like.dtype) + 1) / side - 1
    return line.repeat(side), line.repeat_interleave(side)


def _why_not(templates: Tensor, poses: Tensor) -> str:
    """Why the kernel cannot serve these tensors; empty where it can."""
    if reason := why_no_kernel(poses.device):
        return reason
    if (templates.dtype, poses.dtype) != (torch.float32, torch.float32):
        return f"templates of {templates.dtype} and poses of {poses.dtype} are not float32"
    if templates.shape[-1] > place.LARGEST:
        return f"a template has more than {place.LARGEST} rows"
    return ""


def warped(templates: Tensor, poses: Tensor, side: int, *, impl: Impl = "auto") -> Tensor:
    """Templates where their poses put them. [I,C,S,S], [B,I,2,3] -> [B,I,C,side,side]"""
    reason = _why_not(templates, poses)
    if reason and impl == "triton":
        raise TorchcapsError(f"impl='triton': {reason}.")
    if impl == "triton" or (impl == "auto" and poses.device.type == "cuda" and not reason):
        return torch.ops.torchcaps.place(templates, inverse(poses), side)
    x, y = canvas(side, poses)
    back = inverse(poses)[..., None, :]  # [B,I,2,1,3]
    u, v = (back[..., n, :, 0] * x + back[..., n, :, 1] * y + back[..., n, :, 2] for n in (0, 1))
    if impl == "auto" and poses.device.type == "cpu" and not _traced():
        return _sampled(templates, u, v, side)
    size = templates.shape[-1]
    rows = torch.einsum("bips,icst->bipct", hats(v, size), templates)
    drawn = (rows * hats(u, size)[..., None, :]).sum(-1)
    return drawn.transpose(2, 3).unflatten(-1, (side, side))


def _traced() -> bool:
    """Whether operations are written into a graph, for a compiler or for another program."""
    return torch.compiler.is_compiling() or get_proxy_mode() is not None


def _sampled(templates: Tensor, u: Tensor, v: Tensor, side: int) -> Tensor:
    """Templates at places that are given, by the operator that samples. u and v [B,I,HW]"""
    batch = u.shape[0]
    grid = torch.stack([u, v], -1).flatten(0, 1).unflatten(1, (side, side))
    drawn = F.grid_sample(templates.repeat(batch, 1, 1, 1), grid, align_corners=False)
    return drawn.unflatten(0, (batch, -1))


def composite(colours: Tensor, opacities: Tensor) -> Tensor:
    """Lay parts over each other, the last on top. [B,I,C,H,W], [B,I,1,H,W] -> [B,C,H,W]"""
    opacities = opacities.clamp(max=1 - 1e-6)
    through = torch.log1p(-opacities)
    above = through.flip(1).cumsum(1).flip(1) - through  # of all parts on top of each
    return (opacities * colours * above.exp()).sum(1)


class Templates(nn.Module):
    """Colour and opacity of every part, and the image that poses and presences make of them.

    poses [B,I,2,3], presences [B,I] -> images [B,C,H,W]
    """

    letters = "[B,I,2,3] -> [B,C,H,W]"

    def __init__(self, num_parts: int, size: int, channels: int, image_size: int):
        super().__init__()
        self.image_size = image_size
        self.colour = nn.Parameter(torch.randn(num_parts, channels, size, size) * 0.5 - 1)
        self.opacity = nn.Parameter(torch.randn(num_parts, 1, size, size) * 0.5 - 1)

    def forward(self, poses: Tensor, presences: Tensor) -> Tensor:
        with torch.autocast(poses.device.type, enabled=False):  # places need float32
            poses = poses.to(self.colour.dtype)
            both = torch.cat([self.colour, self.opacity], 1).sigmoid()
            drawn = warped(both, poses, self.image_size)
            opacities = presences.to(poses)[:, :, None, None, None] * drawn[:, :, -1:]
            return composite(drawn[:, :, :-1], opacities)
