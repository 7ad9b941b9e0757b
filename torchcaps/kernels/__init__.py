"""Triton kernels, one file per kernel with its launcher. Imports torch and triton only."""

import importlib.util
import os

import torch

_HAS_TRITON = importlib.util.find_spec("triton") is not None
_INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") not in ("0", "")  # Triton's own switch


def why_no_kernel(device: torch.device) -> str:
    """Reason why kernels cannot run on a device; empty if they can."""
    if not _HAS_TRITON:
        return "Triton is not installed"
    if device.type != "cuda" and not _INTERPRETED:
        return f"the tensors are on {device.type}; Triton needs a GPU"
    return ""
