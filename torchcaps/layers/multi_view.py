"""Affinely transformed copies (views) of an image."""

import torch
from torch import Tensor, nn

from torchcaps.functional import affine_matrix, exact, warp


class Views(nn.Module):
    """Views of an image: itself, and one per rotation (degrees), scale and shear.

    jitter: maximum random change of a view's rotation (degrees), scale and shear, sampled for each
    image and view during training

    images [B,C,H,W] -> [B*V,C,H,W], the views of one image in consecutive rows

    >>> Views(rotations=(-12.0, 12.0))(torch.rand(2, 1, 28, 28)).shape  # three views each
    torch.Size([6, 1, 28, 28])
    """

    letters = "[B,C,H,W] -> [B*V,C,H,W]"
    poses: Tensor

    def __init__(
        self,
        rotations: tuple[float, ...] = (),
        scales: tuple[float, ...] = (),
        shears: tuple[float, ...] = (),
        jitter: tuple[float, float, float] = (0.0, 0.0, 0.0),
    ):
        super().__init__()
        self.jitter = jitter
        poses = [(0.0, 1.0, 0.0)]
        poses += [(r, 1.0, 0.0) for r in rotations]
        poses += [(0.0, s, 0.0) for s in scales]
        poses += [(0.0, 1.0, s) for s in shears]
        # pose: degrees, scale along x, scale along y, shear
        poses = torch.tensor([(degrees, s, s, shear) for degrees, s, shear in poses])
        self.register_buffer("poses", poses, persistent=False)

    @property
    def num_views(self) -> int:
        return len(self.poses)

    def matrices(self, batch: int) -> Tensor:
        """Affine map of every view of every image. -> [B*V,2,3]"""
        poses, moved = self.poses.float(), self.training and any(self.jitter)
        if moved:
            degrees, size, shear = self.jitter
            reach = poses.new_tensor([degrees, size, size, shear])
            poses = poses.repeat(batch, 1)
            poses = poses + reach * (2 * torch.rand_like(poses) - 1)
        shift = torch.zeros_like(poses[:, :2])
        matrix = affine_matrix(poses[:, 0], poses[:, 1:3], poses[:, 3], shift)
        return matrix if moved else matrix.repeat(batch, 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        if self.num_views == 1 and not any(self.jitter):
            return images
        batch, (height, width) = images.shape[0], images.shape[2:]
        copies = exact(images.repeat_interleave(self.num_views, 0))  # coordinates need float32
        with torch.autocast(images.device.type, enabled=False):
            matrix = self.matrices(batch).to(copies)
            return warp(copies, matrix, (height, width)).to(images.dtype)
