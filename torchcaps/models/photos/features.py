"""Feature maps of a frozen backbone, computed once and kept in a cache folder.

The name of a file in the cache is a hash of everything that decides its content: the images as
they are decoded, the backbone's weights, its normalization, the grid, and the version of this code.
"""

import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from torchcaps.data import Split
from torchcaps.data.stream import StoredImages, prefetch

if TYPE_CHECKING:
    from torchcaps.models.photos.base import PhotoModel

REVISION = 1
"""Raised when a change of the code changes the feature maps."""
BATCH = 64
FEW = 256
"""Images up to which an export to onnxruntime takes longer than it saves."""


def cache_folder() -> Path:
    """Folder of the feature maps; it can be deleted at any time."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("torchcaps")) / "features"


class _Maps(nn.Module):
    """Images to pooled maps."""

    def __init__(self, model: "PhotoModel"):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model.pooled(self.model.backbone(images))


def weights_digest(model: "PhotoModel") -> str:
    """A hash of what the backbone computes: its weights by name, normalization, grid."""
    backbone, config = model.backbone, model.config
    hashed = hashlib.sha256(
        repr((REVISION, backbone.name, backbone.prefix_tokens, config.grid)).encode()
    )
    parts = {**backbone.network.state_dict(), "mean": backbone.mean, "std": backbone.std}
    for name, tensor in parts.items():
        hashed.update(f"{name}{tensor.dtype}{list(tensor.shape)}".encode())
        hashed.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return hashed.hexdigest()


def _images_digest(split: Split) -> str:
    """A hash of the images of a split, as a model gets them."""
    hashed = hashlib.sha256(repr(tuple(split.images.shape[1:])).encode())
    for images in _images(split):
        hashed.update(images.contiguous().cpu().numpy().tobytes())
    return hashed.hexdigest()


def _images(split: Split) -> Iterator[Tensor]:
    """Images in batches, uint8 or float [B,C,H,W], as the split stores them."""
    for start in range(0, len(split), BATCH):
        prefetch(split.images, slice(start + BATCH, start + 2 * BATCH))
        images = split.images[start : start + BATCH]
        yield images.pixels() if isinstance(images, StoredImages) else images


def computed(model: "PhotoModel", split: Split) -> Split:
    """The split with the backbone's maps, float16 [N,C,G,G], in place of its images."""
    name = hashlib.sha256((weights_digest(model) + _images_digest(split)).encode()).hexdigest()
    file = cache_folder() / f"{name}.safetensors"
    maps = _cached(file, len(split))
    if maps is None:
        maps = _compute(model, split)
        _keep(file, maps)
    return replace(split, images=maps.to(split.images.device))


def _cached(file: Path, count: int) -> Tensor | None:
    try:
        maps = load_file(file)["maps"]
    except (OSError, SafetensorError, KeyError):  # absent, or cut short: computed again
        return None
    return maps if len(maps) == count else None


def _keep(file: Path, maps: Tensor) -> None:
    """Write a file as a whole; a full disk costs time later and nothing else."""
    temporary = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(save({"maps": maps}))
        os.replace(temporary, file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        print(f"The feature cache was not written: {file.parent} ({error}).", file=sys.stderr)


@torch.no_grad()
def _compute(model: "PhotoModel", split: Split) -> Tensor:
    training = model.training
    run = _fastest(model.eval(), len(split))
    parts = []
    for images in _images(split):
        images = images / 255 if images.dtype == torch.uint8 else images.float()
        parts.append(run(images).half().cpu().contiguous())
        _progress(sum(map(len, parts)), len(split))
    model.train(training)
    return torch.cat(parts) if parts else torch.zeros(0, model.backbone.channels, 1, 1).half()


@torch.no_grad()
def maps_of(model: "PhotoModel", images: Tensor) -> Tensor:
    """The pooled maps of many images, not kept. [B,C,H,W] -> [B,C',G,G]"""
    run = _fastest(model, len(images))
    return torch.cat([run(part) for part in images.float().split(BATCH)])


def _progress(done: int, count: int) -> None:
    """A line on a terminal; a log stays free of it."""
    if sys.stderr.isatty() and count >= FEW:
        end = "\n" if done == count else ""
        print(f"\rfeatures of {done:,} of {count:,} images", end=end, file=sys.stderr, flush=True)


def _fastest(model: "PhotoModel", count: int) -> Callable[[Tensor], Tensor]:
    """The backbone on a GPU in channels_last, on a CPU by onnxruntime where it is installed."""
    maps = _Maps(model).eval()
    device = next(model.parameters()).device
    packages = ("onnx", "onnxscript", "onnxruntime")
    installed = all(importlib.util.find_spec(name) for name in packages)
    if device.type == "cpu" and installed and count > FEW:
        name = f"{weights_digest(model)}{model.config.image_shape}"
        if name not in _EXPORTED:
            _EXPORTED.clear()  # one backbone's memory is enough
            _EXPORTED[name] = _onnx(maps, model.config.image_shape)
        return _EXPORTED[name]
    return lambda images: maps(images.to(device, memory_format=torch.channels_last))


_EXPORTED: dict[str, Callable[[Tensor], Tensor]] = {}
"""The last backbone exported: an export takes seconds, and a run computes many sets of features."""


def _onnx(maps: nn.Module, shape: tuple[int, int, int]) -> Callable[[Tensor], Tensor]:
    import logging
    import warnings

    import onnxruntime

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about torch's own code
        batch = torch.export.Dim("batch", min=1, max=4096)
        program = torch.export.export(maps, (torch.rand(2, *shape),), dynamic_shapes=({0: batch},))
        exported = torch.onnx.export(
            program, dynamo=True, opset_version=18, verbose=False, input_names=["images"],
            dynamic_shapes=({0: "batch"},),
        )  # fmt: skip
    assert exported is not None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with TemporaryDirectory() as folder:
        file = Path(folder) / "backbone.onnx"
        exported.save(file)
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {"images": images.contiguous().numpy()})[0])

    return run
