"""Predictions: images in any form to class names and probabilities."""

import io
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchcaps.data.images import is_deep, list_images, read_picture
from torchcaps.data.images import read_images as read_files
from torchcaps.data.value_range import Values, as_text, exceeds, to_bytes
from torchcaps.errors import TorchcapsError, TorchcapsWarning, UsageError

if TYPE_CHECKING:
    from torchcaps.models.base import Model, Output

BATCH_SIZE = 64


class Prediction(NamedTuple):
    name: str
    probability: float


def image_files(paths: Sequence[str | Path]) -> list[Path]:
    """Image files in the order of the paths; a folder gives the images in it and below."""
    files: list[Path] = []
    for path in (Path(p).expanduser() for p in paths):
        if not path.exists():
            raise UsageError(f"{path}: no such file.")
        inside = list_images(path) if path.is_dir() else [path]
        if not inside:
            raise TorchcapsError(f"{path}: no images in this folder.")
        files += inside
    if not files:
        raise UsageError("Give an image or a folder of images.")
    return files


def image_batches(model: "Model", images: Any, batch_size: int = BATCH_SIZE) -> Iterator[Tensor]:
    """Images as the model takes them, some at a time: [B,C,H,W] in [0,1], on its device.

    images: a file, a folder, a Pillow image, a list of these, a numpy array or a tensor
    """
    if batch_size < 1:
        raise TorchcapsError(f"batch_size={batch_size}: it must be at least 1.")
    device = next(model.parameters()).device
    if isinstance(images, Tensor | np.ndarray):
        pixels = _as_pixels(model, images).split(batch_size)
        yield from (part.to(device) for part in pixels)
        return
    items = [images] if isinstance(images, str | Path) or _is_pillow(images) else list(images)
    if any(map(_is_pillow, items)):
        whole = torch.stack([_from_pillow(model, image) for image in items])
        yield from (part.to(device).float() / 255 for part in whole.split(batch_size))
        return
    if items and isinstance(items[0], Tensor | np.ndarray):
        raise TorchcapsError("A list of arrays or tensors: stack them into one, [N,C,H,W].")
    files = image_files(items)
    for start in range(0, len(files), batch_size):
        yield read_images(model, files[start : start + batch_size])


def _target(model: "Model") -> tuple[tuple[int, int], str]:
    channels, height, width = model.config.image_shape
    if channels not in (1, 3):
        raise TorchcapsError(f"This model takes {channels} channels, and image files have 1 or 3.")
    return (height, width), "L" if channels == 1 else "RGB"


def read_images(model: "Model", files: Sequence[Path]) -> Tensor:
    """Files as the model takes them: gray or color, scaled to cover its size, then the center.

    -> [B,C,H,W] in [0,1], on the model's device
    """
    pictures = read_files(files, *_target(model), value_range=model.value_range)
    _warn_of_range(model, pictures.deep, pictures.clipped)
    return pictures.images.to(next(model.parameters()).device).float() / 255


def _warn_of_range(model: "Model", deep: int | bool, clipped: int | bool) -> None:
    """Warn of images with more than 8 bits that the model's range does not cover."""
    text = ""
    if clipped and model.value_range:
        text = (
            f"Some images have values outside the range {as_text(model.value_range)} that the "
            "model was trained with; they are clipped."
        )
    elif deep and not model.value_range:
        text = (
            "Some images have more than 8 bits, and the model was trained on 8 bits: integers are "
            "scaled from 0..65535, floats from 0..1."
        )
    if text:
        warnings.warn(text, TorchcapsWarning, stacklevel=2)


def _is_pillow(image: Any) -> bool:
    return hasattr(image, "getbands")


def _from_pillow(model: "Model", image: Any) -> Tensor:
    """A Pillow image as uint8 [C,H,W], read as a file is."""
    if not _is_pillow(image):
        raise TorchcapsError(f"A list of Pillow images has a {type(image).__name__} in it.")
    file = io.BytesIO()
    if is_deep(image):
        image.save(file, "TIFF")
    else:
        (image.convert("RGB") if image.mode in ("CMYK", "YCbCr") else image).save(file, "PNG")
    file.seek(0)
    picture = read_picture(file, *_target(model), model.value_range)
    assert picture.pixels is not None
    if (values := picture.values) is not None:
        known = model.value_range
        _warn_of_range(model, deep=True, clipped=bool(known) and exceeds(values, known))
    return picture.pixels


def _as_pixels(model: "Model", images: Tensor | np.ndarray) -> Tensor:
    """An array of images, uint8, float in [0,1] or integers in the model's range, as float
    [N,C,H,W].
    """
    tensor = torch.as_tensor(images)
    channels = model.config.in_channels
    if tensor.ndim == 2:
        tensor = tensor[None, None]
    if tensor.ndim == 3:  # one image, or several gray ones
        single = channels in (tensor.shape[0], tensor.shape[-1])
        tensor = tensor[None] if single else tensor[:, None]
    if tensor.ndim != 4:
        raise TorchcapsError(f"Images of shape {tuple(tensor.shape)}: give [N,C,H,W].")
    if tensor.shape[1] != channels and tensor.shape[-1] == channels:
        tensor = tensor.movedim(-1, 1)
    if tensor.dtype == torch.uint8:
        tensor = tensor.float() / 255
    elif not tensor.is_floating_point():
        if not model.value_range or tensor.dtype == torch.bool:
            raise TorchcapsError(f"Images of {tensor.dtype}: give uint8, or float from 0 to 1.")
        values = tensor.cpu().double().numpy()
        if values.size:
            _warn_of_range(model, True, exceeds(Values.of(values), model.value_range))
        tensor = torch.from_numpy(to_bytes(values, model.value_range)).float() / 255
    low, high = (float(tensor.min()), float(tensor.max())) if tensor.numel() else (0.0, 0.0)
    if not 0 <= low <= high <= 1:  # NaN is in no range
        known = model.value_range
        scale = f" (the model was trained with {as_text(known)} as 0 to 1)" if known else ""
        raise TorchcapsError(
            f"Images from {low:g} to {high:g}: give uint8, or float from 0 to 1{scale}."
        )
    tensor = tensor.float()
    model.check_images(tensor)
    return tensor


def class_probabilities(output: "Output", temperature: float | None = None) -> Tensor:
    """Probabilities of the classes: a softmax of the logits at the model's temperature, or without
    one the capsules' scores as shares of their sum, or a softmax. -> [B,Y]
    """
    if temperature is not None and output.logits is not None:
        return (output.logits.float() / temperature).softmax(1)
    if output.scores is not None:
        scores = output.scores.float().clamp(min=1e-12)
        return scores / scores.sum(1, keepdim=True)
    assert output.logits is not None
    return output.logits.float().softmax(1)


@torch.no_grad()
def predict(
    model: "Model", images: Any, top_k: int = 5, batch_size: int = BATCH_SIZE
) -> list[list[Prediction]]:
    """The most likely classes of each image, the most likely first."""
    if "logits" not in model.provides:
        raise TorchcapsError(f"A {model.config.family} has no classes to predict.")
    if top_k < 1:
        raise TorchcapsError(f"top_k={top_k}: it must be at least 1.")
    names = model.class_names or tuple(str(n) for n in range(model.config.num_classes))
    predictions = []
    training = model.training
    model.eval()
    for batch in image_batches(model, images, batch_size):
        probabilities = class_probabilities(model.encode(batch), model.temperature)
        values, classes = probabilities.topk(min(top_k, probabilities.shape[1]), 1)
        predictions += [
            [Prediction(names[c], value) for c, value in zip(*row, strict=True)]
            for row in zip(classes.tolist(), values.tolist(), strict=True)
        ]
    model.train(training)
    return predictions
