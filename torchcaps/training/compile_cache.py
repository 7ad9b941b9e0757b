"""Compiled artifacts of torch.compile, for later processes and machines of the same kind.

    FOLDER/<digest of the recipe>/manifest.json     key of the machine; sizes, sha256 of the parts
                                  part-000.bin …    at most 16 MB each

Runs that differ only in seed compile the same graphs and share a digest. Artifacts are code that
torch executes: load only folders that you wrote. A folder of another user, or one that others may
write to, is refused, as is one whose key differs: another device, or version of torch or Triton.
"""

import json
import os
import platform
import shutil
import stat
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from torchcaps.data.source import sha256
from torchcaps.errors import TorchcapsError
from torchcaps.training.checkpoint import write_atomic

PART = 16 * 10**6
"""Largest size of a file in bytes."""
MANIFEST = "manifest.json"


def machine_key(device: torch.device) -> dict[str, str]:
    """Facts that artifacts depend on: device, torch and Triton."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        name = f"{torch.cuda.get_device_name(device)}, sm_{major}{minor}, CUDA {torch.version.cuda}"
    else:
        name = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = "none"
    return {"device": name, "torch": torch.__version__, "triton": triton}


def save_artifacts(folder: Path, device: torch.device) -> bool:
    """Save what this process compiled, in place of earlier artifacts; False if nothing."""
    artifacts = torch.compiler.save_cache_artifacts()
    if artifacts is None:
        return False
    data = artifacts[0]
    temporary = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    parts = [data[start : start + PART] for start in range(0, len(data), PART)]
    listed = []
    for number, part in enumerate(parts):
        name = f"part-{number:03}.bin"
        write_atomic(temporary / name, part)
        listed.append([name, len(part), sha256(part)])
    manifest = {"key": machine_key(device), "parts": listed}
    write_atomic(temporary / MANIFEST, json.dumps(manifest, indent=1).encode())
    if folder.exists():  # processes that save at once replace one another
        shutil.rmtree(folder, ignore_errors=True)
    try:
        temporary.rename(folder)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
    return True


def load_artifacts(folder: Path, device: torch.device) -> bool:
    """Load artifacts before the first compilation; False if the folder has no artifacts.

    Raises if they are of another machine, damaged, or not the user's own.
    """
    if not (folder / MANIFEST).exists():
        return False
    manifest = _manifest(folder)
    wanted = machine_key(device)
    differing = [k for k, v in wanted.items() if manifest["key"].get(k) != v]
    if differing:
        stored = ", ".join(f"{k} {manifest['key'].get(k)}" for k in differing)
        here = ", ".join(f"{k} {wanted[k]}" for k in differing)
        raise TorchcapsError(f"{folder} was compiled for {stored}; this is {here}.")
    data = b""
    for name, size, digest in manifest["parts"]:
        path = folder / Path(str(name)).name
        _check_owner(path)
        part = path.read_bytes()
        if len(part) != size or sha256(part) != digest:
            raise TorchcapsError(f"{path}: not the part that was saved.")
        data += part
    torch.compiler.load_cache_artifacts(data)
    return True


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    _check_owner(folder)
    _check_owner(path)
    try:
        values = json.loads(path.read_text())
        assert isinstance(values["key"], dict)
        for name, size, digest in values["parts"]:
            assert isinstance(name, str) and isinstance(size, int) and isinstance(digest, str)
    except (OSError, ValueError, KeyError, TypeError, AssertionError):
        raise TorchcapsError(f"{path}: not a readable list of artifacts.") from None
    return values


def _check_owner(path: Path) -> None:
    """Artifacts run as code, so they must be files that only this user writes."""
    try:
        facts = path.stat()
    except OSError:
        raise TorchcapsError(f"{path}: no such file.") from None
    own = not hasattr(os, "getuid") or facts.st_uid == os.getuid()
    if not own or facts.st_mode & stat.S_IWOTH:
        raise TorchcapsError(
            f"{path} is of another user, or others can write to it; artifacts are code. Use a "
            "folder of your own."
        )
