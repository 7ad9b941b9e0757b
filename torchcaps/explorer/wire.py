"""Tensors to bytes and back, as safetensors, which cannot contain code."""

from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from torchcaps.errors import TorchcapsError

Shape = tuple[int | None, ...]
"""Sizes of a tensor; None: any size from 1 to MOST."""
MOST = 256


def pack(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors as bytes; floats become single precision, other types stay."""
    return save({name: _plain(t) for name, t in tensors.items()})


def _plain(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.is_floating_point() else tensor).contiguous().clone()


def unpack(body: bytes, shapes: Mapping[str, Shape]) -> dict[str, Tensor]:
    """Tensors of a body; raise unless they are finite float32 with these names and shapes."""
    try:
        tensors = load(body)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        reason = str(error).split("\n")[0][:100]
        raise TorchcapsError(f"The body is not a safetensors file ({reason}).") from None
    if set(tensors) != set(shapes):
        raise TorchcapsError(f"Expected the tensors {_names(shapes)}; got {_names(tensors)}.")
    for name, shape in shapes.items():
        tensor = tensors[name]
        if tensor.dtype != torch.float32 or not _fits(tensor, shape):
            sizes = "x".join("N" if n is None else str(n) for n in shape)
            raise TorchcapsError(f"{name} must be a float32 tensor of {sizes} (N: 1 to {MOST}).")
        if not bool(tensor.isfinite().all()):
            raise TorchcapsError(f"{name} has values that are not finite.")
    return tensors


def _fits(tensor: Tensor, shape: Shape) -> bool:
    if tensor.dim() != len(shape):
        return False
    pairs = zip(tensor.shape, shape, strict=True)
    return all(1 <= size <= MOST if n is None else size == n for size, n in pairs)


def _names(names: Mapping[str, object]) -> str:
    return ", ".join(sorted(names)[:8]) or "nothing"
