"""From pictures to names: files read as training reads them, and the likeliest classes of each."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from torchcaps.data.pictures import read_images as read_files
from torchcaps.errors import TorchcapsError

if TYPE_CHECKING:
    from torchcaps.models.base import CapsuleModel, Output

Pictures = Tensor | str | Path | Sequence[str | Path]
"""Images [B,C,H,W] in [0,1], or files."""


class Answer(NamedTuple):
    name: str
    probability: float


def read_images(model: "CapsuleModel", files: Iterable[str | Path]) -> Tensor:
    """Files as the model takes them: grey or colour, shorter side to its size, then the centre.

    -> [B,C,H,W] in [0,1], on the model's device
    """
    channels, *size = model.config.image_shape
    if channels not in (1, 3):
        raise TorchcapsError(f"This model takes {channels} channels, which no picture has.")
    mode = "L" if channels == 1 else "RGB"
    images, _ = read_files([Path(f).expanduser() for f in files], (size[0], size[1]), mode)
    return images.to(next(model.parameters()).device).float() / 255


def chances(output: "Output") -> Tensor:
    """Probabilities of the classes: what capsules claim, as shares of all claims, or a softmax."""
    if output.scores is not None:
        claimed = output.scores.float().clamp(min=1e-12)
        return claimed / claimed.sum(1, keepdim=True)
    assert output.logits is not None
    return output.logits.float().softmax(1)


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
    found = chances(model.encode(images))
    model.train(training)
    found, places = found.topk(min(top, found.shape[1]), 1)
    names = model.class_names or tuple(str(n) for n in range(model.config.num_classes))
    return [
        [Answer(names[place], chance) for place, chance in zip(*row, strict=True)]
        for row in zip(places.tolist(), found.tolist(), strict=True)
    ]
