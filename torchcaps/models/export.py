"""A model as a file for other programs, and the proof that the file answers like the model.

The file describes itself: `facts` are the metadata of an ONNX file, and torchcaps.json in the
archive of torch.export.
"""

import json
import logging
import re
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from torchcaps.data.value_range import as_text
from torchcaps.errors import TorchcapsError, TorchcapsWarning
from torchcaps.models.base import Model

Format = Literal["onnx", "torch"]
BATCHES = (1, 3, 8)
"""Sizes with which a file is tried."""


def facts(model: Model) -> dict[str, str]:
    """Facts that a program needs to use an exported model: classes, input and preprocessing."""
    channels, height, width = model.config.image_shape
    color = {1: "gray", 3: "RGB"}.get(channels, f"{channels} channels")
    more: dict[str, str] = {}
    if model.value_range:
        more["file_range"] = as_text(model.value_range)
    if model.temperature is not None:  # class probabilities: softmax of logits / temperature
        more["temperature"] = f"{model.temperature:.6g}"
    return {
        "model": model.config.family,
        "torchcaps_version": version("torchcaps"),
        "class_names": json.dumps(list(model.class_names), ensure_ascii=False),
        "input_shape": f"batch x {channels} x {height} x {width}",
        "input_range": "0..1",
        **more,
        "preprocessing": (
            f"{color} float32 images, channels first; resize with antialiasing to cover "
            f"{height}x{width}, crop the center, divide 8-bit values by 255; no further "
            "normalization"
            + "; scale values of 16-bit and float files from file_range to 0..1, clipped"
            * bool(model.value_range)
        ),
    }


def export(model: Model, file: Path, kind: Format = "onnx") -> float:
    """Write the model with any batch, and compare. -> the largest difference that was seen

    Its outputs are the model's that are there, by their names: logits first where it has any.
    A model of 16-bit or float files clips its input, and a warning tells how to scale such files.
    """
    model = model.cpu().eval()
    module = Clipped(model).eval() if model.value_range else model
    if model.value_range:
        warnings.warn(
            f"{file} takes values from 0 to 1 and clips others. Scale 16-bit and float files from "
            f"{as_text(model.value_range)} to 0..1 first (file_range in the file's metadata).",
            TorchcapsWarning,
            stacklevel=2,
        )
    batch = torch.export.Dim("batch", min=1, max=4096)
    example = torch.rand(2, *model.config.image_shape)
    file.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():  # of torch, about torch's own code
        warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
        program = torch.export.export(module, (example,), dynamic_shapes=({0: batch},))
        if kind == "torch":
            torch.export.save(
                program, file, extra_files={"torchcaps.json": json.dumps(facts(model))}
            )
            loaded = torch.export.load(file).module()

            def answers(images: Tensor) -> list[Tensor]:
                return _leaves(loaded(images))
        else:
            with torch.no_grad():
                names = _names(model(example))
            answers = _written_onnx(program, file, names, facts(model))
    worst, same = 0.0, torch.Generator().manual_seed(0)
    with torch.no_grad():
        for size in BATCHES:
            images = torch.rand(size, *model.config.image_shape, generator=same)
            for output, expected in zip(answers(images), _leaves(model(images)), strict=True):
                apart = (output - expected).abs().max() / expected.abs().max().clamp(min=1)
                worst = max(float(apart.nan_to_num(torch.inf)), worst)
    if not worst < 1e-3:
        raise TorchcapsError(f"{file} was written, but differs from the model by {worst:.2g}.")
    return worst


class Clipped(nn.Module):
    """A model that clips its images to 0..1."""

    def __init__(self, model: Model):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Any:
        return self.model(images.clamp(0, 1))


def _leaves(output: object) -> list[Tensor]:
    return [t for t in _pytree.tree_leaves(output) if isinstance(t, Tensor)]


def _names(output: object) -> list[str]:
    """Name of each tensor of an output: logits, layers.0.poses."""
    pairs, _ = _pytree.tree_flatten_with_path(output)
    names = [_pytree.keystr(path) for path, leaf in pairs if isinstance(leaf, Tensor)]
    return [re.sub(r"\W+", ".", name).strip(".") for name in names]


def _written_onnx(program: Any, file: Path, names: list[str], metadata: dict[str, str]):
    try:
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise TorchcapsError(f"ONNX needs {error.name}: pip install 'torchcaps[export]'.") from None
    # torch tells of every output that a model leaves out
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    exported = torch.onnx.export(
        program, dynamo=True, opset_version=18, verbose=False, input_names=["images"],
        output_names=names, dynamic_shapes=({0: "batch"},),
    )  # fmt: skip
    assert exported is not None
    exported.model.metadata_props.update(metadata)
    exported.save(file)
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()

    def answers(images: Tensor) -> list[Tensor]:
        return [torch.from_numpy(t) for t in session.run(None, {given.name: images.numpy()})]

    return answers
