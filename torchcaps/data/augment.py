"""Augmentation in two steps: sample parameters for each image, then apply them to the batch.

A recipe names augmentations as text: ("crop:4", "flip"). Random numbers come from a counter
(`functional.counter_uniform`), so image n is augmented in the same way on every device and rank and
after a resume.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from torchcaps.data.dataset import Batch
from torchcaps.data.spec import call, parse
from torchcaps.errors import UsageError, nearest
from torchcaps.functional import affine_matrix, counter_uniform, translate, warp


class Transform(Protocol):
    """`sample` converts uniform numbers [B,num_uniforms] to parameters [B,…]; `apply` uses them."""

    num_uniforms: int

    def sample(self, u: Tensor, images: Tensor) -> Tensor: ...
    def apply(self, images: Tensor, parameters: Tensor) -> Tensor: ...


@dataclass
class Affine:
    """Rotate, scale (isotropic), shear and shift about the center; bilinear, black outside."""

    degrees: float = 0.0
    shift: float = 0.0
    """Largest shift in pixels."""
    min_scale: float = 1.0
    max_scale: float = 1.0
    shear: float = 0.0
    num_uniforms = 5

    def sample(self, u: Tensor, images: Tensor) -> Tensor:
        signed = 2 * u - 1
        scale = self.min_scale + (self.max_scale - self.min_scale) * u[:, 1:2].expand(-1, 2)
        shift = self.shift * signed[:, 3:5]
        return affine_matrix(self.degrees * signed[:, 0], scale, self.shear * signed[:, 2], shift)

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        height, width = images.shape[2:]
        return warp(images, parameters, (height, width))


@dataclass
class Rotate:
    """Rotate about the center by up to `degrees`; the border's pixels repeat outside."""

    degrees: float = 180.0
    num_uniforms = 1

    def sample(self, u: Tensor, images: Tensor) -> Tensor:
        return affine_matrix(
            self.degrees * (2 * u[:, 0] - 1), u.new_ones(len(u), 2), u.new_zeros(len(u)),
            u.new_zeros(len(u), 2),
        )  # fmt: skip

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        height, width = images.shape[2:]
        return warp(images, parameters, (height, width), outside="border")

    @staticmethod
    def angle(parameters: Tensor) -> Tensor:
        """Angle of rotations in radians, counter-clockwise. [B,2,3] -> [B]"""
        return torch.atan2(parameters[:, 0, 1], parameters[:, 0, 0])


@dataclass
class Translate:
    """Shift by up to `pixels` whole pixels in each direction; black outside."""

    pixels: int
    num_uniforms = 2

    def sample(self, u: Tensor, images: Tensor) -> Tensor:
        return (u * (2 * self.pixels + 1)).long() - self.pixels

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        return translate(images, parameters)


@dataclass
class Crop(Translate):
    """Pad by `pixels` and crop the original size at random, the same as `Translate`."""


@dataclass
class ResizedCrop:
    """Crop a rectangle of random area and aspect ratio and resize it to the image's size."""

    min_area: float = 0.35
    max_ratio: float = 4 / 3
    num_uniforms = 4

    def sample(self, u: Tensor, images: Tensor) -> Tensor:
        area = self.min_area + (1 - self.min_area) * u[:, 0]
        ratio = self.max_ratio ** (2 * u[:, 1] - 1)
        size = torch.stack([(area * ratio).sqrt(), (area / ratio).sqrt()], -1).clamp(max=1)
        pixels = torch.tensor(images.shape[:1:-1], device=u.device)
        center = (1 - size) * (u[:, 2:4] - 0.5) * pixels
        # the map moves the rectangle's center to the image's center, and its sides to the borders
        linear = torch.diag_embed(1 / size)
        return torch.cat([linear, (-center / size)[:, :, None]], -1)

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        height, width = images.shape[2:]
        return warp(images, parameters, (height, width))


@dataclass
class Flip:
    """Flip horizontally with probability `p`."""

    p: float = 0.5
    num_uniforms = 1

    def sample(self, u: Tensor, images: Tensor) -> Tensor:
        return u[:, 0] < self.p

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        return torch.where(parameters[:, None, None, None], images.flip(3), images)


@dataclass
class ColorJitter:
    """Scale brightness, contrast and saturation by a factor in [1-x, 1+x]; shift hue by [-x, x]."""

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    num_uniforms = 4

    def sample(self, u: Tensor, images: Tensor) -> Tensor:
        bounds = torch.tensor(
            [self.brightness, self.contrast, self.saturation, self.hue], device=u.device
        )
        base = torch.tensor([1.0, 1.0, 1.0, 0.0], device=u.device)
        return base + bounds * (2 * u - 1)

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        brightness, contrast, saturation, hue = (
            p[:, None, None, None] for p in parameters.unbind(1)
        )
        images = (images * brightness).clamp(0, 1)
        mean = _luma(images).mean((1, 2, 3), keepdim=True)
        images = (mean + contrast * (images - mean)).clamp(0, 1)
        if images.shape[1] == 3 and (self.saturation or self.hue):
            gray = _luma(images)
            images = (gray + saturation * (images - gray)).clamp(0, 1)
            images = _shift_hue(images, hue)
        return images


def _luma(images: Tensor) -> Tensor:
    if images.shape[1] != 3:
        return images
    red, green, blue = images.split(1, 1)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def _shift_hue(images: Tensor, shift: Tensor) -> Tensor:
    """Add `shift` (1: full circle) to the hue in HSV."""
    value, channel = images.max(1, keepdim=True)
    chroma = value - images.min(1, keepdim=True).values
    red, green, blue = images.split(1, 1)
    safe = chroma.clamp(min=1e-12)
    sector = torch.stack([(green - blue) / safe, 2 + (blue - red) / safe, 4 + (red - green) / safe])
    hue = sector.gather(0, channel[None])[0] / 6 + shift
    offset = torch.tensor([5.0, 3.0, 1.0], device=images.device)[None, :, None, None]
    k = (offset + 6 * hue) % 6
    return value - chroma * torch.minimum(k, 4 - k).clamp(0, 1)


@dataclass
class Erase:
    """Erase a rectangle of up to `area` of the image with probability `p`."""

    p: float = 0.5
    area: float = 0.25
    num_uniforms = 5

    def sample(self, u: Tensor, images: Tensor) -> Tensor:
        """-> [B,4]: left, top, right, bottom in pixels"""
        extent = torch.tensor(images.shape[:1:-1], device=u.device)
        ratio = 2 ** (2 * u[:, 2] - 1)
        area = self.area * u[:, 1] * (u[:, 0] < self.p)
        size = torch.stack([(area * ratio).sqrt(), (area / ratio).sqrt()], -1).clamp(max=1) * extent
        corner = u[:, 3:5] * (extent - size)
        return torch.cat([corner, corner + size], -1).round().long()

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        height, width = images.shape[2:]
        x, y = torch.arange(width, device=images.device), torch.arange(height, device=images.device)
        left, top, right, bottom = (p[:, None] for p in parameters.unbind(1))
        columns, rows = (x >= left) & (x < right), (y >= top) & (y < bottom)
        return images * ~(rows[:, None, :, None] & columns[:, None, None, :])


TRANSFORMS: dict[str, Callable[..., Transform]] = {
    "affine": Affine,
    "rotate": Rotate,
    "crop": Crop,
    "resized-crop": ResizedCrop,
    "flip": Flip,
    "color-jitter": ColorJitter,
    "translate": Translate,
    "erase": Erase,
}


class Augment:
    """A sequence of transforms named as text: Augment(("crop:4", "flip", "affine:degrees=10")).

    >>> batch = torchcaps.data.load("digits").train.batch(slice(0, 4))
    >>> Augment(("crop:4", "flip"))(batch, 0, torch.arange(4)).images.shape
    torch.Size([4, 1, 28, 28])
    """

    def __init__(self, names: tuple[str, ...]):
        self.transforms: list[Transform] = []
        for text in names:
            name = parse(text)[0]
            if name not in TRANSFORMS:
                hint = nearest(name, list(TRANSFORMS))
                raise UsageError(f"There is no augmentation {name!r}. {hint}")
            self.transforms.append(call(TRANSFORMS[name], text))

    def __call__(self, batch: Batch, seed: int, number: Tensor) -> Batch:
        """Augment a batch and its targets. number [B]: counter of the samples over the whole run"""
        # not the seed of generated images, so that the random numbers differ
        u = counter_uniform(~seed, number, sum(t.num_uniforms for t in self.transforms))
        images, targets, rotation, column = batch.images, batch.targets, batch.rotation, 0
        for transform in self.transforms:
            uniforms = u[:, column : column + transform.num_uniforms]
            column += transform.num_uniforms
            parameters = transform.sample(uniforms, images)
            images = transform.apply(images, parameters)
            if isinstance(transform, Rotate):
                angle = transform.angle(parameters)
                rotation = angle if rotation is None else rotation + angle
            if targets is not None and not isinstance(transform, ColorJitter | Erase):
                objects = [transform.apply(t, parameters) for t in targets.unbind(1)]
                targets = torch.stack(objects, 1)
        return replace(batch, images=images, targets=targets, rotation=rotation)


CUTMIX_UNIFORMS = 4
"""Random numbers per image for `cutmix`."""


def cutmix(batch: Batch, other: Batch, u: Tensor, p: float) -> Batch:
    """CutMix: paste a rectangle of `other` into each image with probability p; u [B,4] uniform.

    The area of the rectangle (before clipping at the border) and its center are uniform. `pasted`
    holds the labels of `other`, `kept` the share of the image outside the rectangle.
    """
    height, width = batch.images.shape[2:]
    extent = torch.tensor([height, width], device=u.device)
    half = (u[:, :1] * (u[:, 1:2] < p)).sqrt() * extent / 2
    center = u[:, 2:4] * extent
    low = (center - half).round().clamp(min=0)
    high = torch.minimum((center + half).round(), extent)
    y = torch.arange(height, device=u.device)[None]
    x = torch.arange(width, device=u.device)[None]
    rows = (y >= low[:, :1]) & (y < high[:, :1])
    columns = (x >= low[:, 1:]) & (x < high[:, 1:])
    inside = rows[:, :, None] & columns[:, None, :]
    return replace(
        batch,
        images=torch.where(inside[:, None], other.images, batch.images),
        pasted=other.labels,
        kept=1 - inside.float().mean((1, 2)),
    )
