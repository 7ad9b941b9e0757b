"""From pictures to names: files read as training reads them, and the likeliest classes of each."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from torchcaps.data.folder import read_image
from torchcaps.errors import TorchcapsError

if TYPE_CHECKING:
    from torchcaps.models.base import CapsuleModel

Pictures = Tensor | str | Path | Sequence[str | Path]
"""Images [B,C,H,W] in [0,1], or files."""


class Answer(NamedTuple):
    name: str
    probability: float


def read_images(model: "CapsuleModel", files: Iterable[str | Path]) -> Tensor:
    """Files as the model takes them: grey or colour, shorter side to its size, then the centre.

    -> [B,C,H,W] in [0,1], on the model's device
    """
    channels, size, _ = model.config.image_shape
    if channels not in (1, 3):
        raise TorchcapsError(f"This model takes {channels} channels, which no picture has.")
    mode = "L" if channels == 1 else "RGB"
    images = torch.stack([read_image(Path(f).expanduser(), size, mode) for f in files])
    return images.to(next(model.parameters()).device).float() / 255


@torch.no_grad()
def predict(model: "CapsuleModel", images: Pictures, top: int = 5) -> list[list[Answer]]:
    """The likeliest classes of each image, the likeliest first; all where there are fewer."""
    if "logits" not in model.provides:
        raise TorchcapsError(f"A model of {model.config.family} knows no classes.")
    if top < 1:
        raise TorchcapsError("top is at least 1.")
    if not isinstance(images, Tensor):
        files = [images] if isinstance(images, str | Path) else list(images)
        if not files:
            raise TorchcapsError("There is no image to predict.")
        images = read_images(model, files)
    training = model.training
    model.eval()
    logits = model(images).logits
    model.train(training)
    assert logits is not None
    chances, places = logits.float().softmax(1).topk(min(top, logits.shape[1]), 1)
    names = model.class_names or tuple(str(n) for n in range(logits.shape[1]))
    return [
        [Answer(names[place], chance) for place, chance in zip(*row, strict=True)]
        for row in zip(places.tolist(), chances.tolist(), strict=True)
    ]
