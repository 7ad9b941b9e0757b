"""An image seen from several poses."""

import torch
from torch import Tensor, nn

from torchcaps.functional import affine_matrix, warp


class Views(nn.Module):
    """The image itself, and once under each rotation (degrees), scale and shear.

    images [B,C,H,W] -> [B*V,C,H,W], views of one image side by side
    """

    letters = "[B,C,H,W] -> [B*V,C,H,W]"
    matrix: Tensor

    def __init__(
        self,
        rotations: tuple[float, ...] = (),
        scales: tuple[float, ...] = (),
        shears: tuple[float, ...] = (),
    ):
        super().__init__()
        poses = [(0.0, 1.0, 0.0)]
        poses += [(r, 1.0, 0.0) for r in rotations]
        poses += [(0.0, s, 0.0) for s in scales]
        poses += [(0.0, 1.0, s) for s in shears]
        degrees, scale, shear = torch.tensor(poses).unbind(1)
        scales_xy, still = scale[:, None].expand(-1, 2), torch.zeros(len(poses), 2)
        matrix = affine_matrix(degrees, scales_xy, shear, still)
        self.register_buffer("matrix", matrix, persistent=False)

    @property
    def num_views(self) -> int:
        return len(self.matrix)

    def forward(self, images: Tensor) -> Tensor:
        if self.num_views == 1:
            return images
        batch, (height, width) = images.shape[0], images.shape[2:]
        seen = images.repeat_interleave(self.num_views, 0)
        exact = torch.promote_types(images.dtype, torch.float32)  # coordinates need it
        with torch.autocast(images.device.type, enabled=False):
            matrix = self.matrix.to(exact).repeat(batch, 1, 1)
            return warp(seen.to(exact), matrix, (height, width)).to(images.dtype)
