"""Tensors as bytes, both ways: safetensors, which no reader can be made to run."""

from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from torchcaps.errors import TorchcapsError

Shape = tuple[int | None, ...]
"""Sizes of a tensor; None: any from 1 to MOST."""
MOST = 256


def pack(tensors: Mapping[str, Tensor]) -> bytes:
    """Float tensors in single precision, others as they are."""
    return save({name: _plain(t) for name, t in tensors.items()})


def _plain(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.is_floating_point() else tensor).contiguous().clone()


def unpack(body: bytes, wanted: Mapping[str, Shape]) -> dict[str, Tensor]:
    """The wanted tensors of a body: float32, of these shapes, finite; else a sentence."""
    try:
        found = load(body)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        reason = str(error).split("\n")[0][:100]
        raise TorchcapsError(f"The body is no safetensors file ({reason}).") from None
    if set(found) != set(wanted):
        raise TorchcapsError(f"The body holds {_listed(found)}; it must hold {_listed(wanted)}.")
    for name, shape in wanted.items():
        tensor = found[name]
        if tensor.dtype != torch.float32 or not _fits(tensor, shape):
            sizes = "x".join("N" if n is None else str(n) for n in shape)
            raise TorchcapsError(f"{name} must be float32 of {sizes} (N from 1 to {MOST}).")
        if not bool(tensor.isfinite().all()):
            raise TorchcapsError(f"{name} has numbers that are not finite.")
    return found


def _fits(tensor: Tensor, shape: Shape) -> bool:
    if tensor.dim() != len(shape):
        return False
    pairs = zip(tensor.shape, shape, strict=True)
    return all(1 <= size <= MOST if n is None else size == n for size, n in pairs)


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(sorted(names)[:8]) or "nothing"
