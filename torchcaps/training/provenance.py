"""Provenance of a number: the command, the commit, the device, the versions."""

import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

_PACKAGES = ("torch", "lightning-fabric", "numpy", "safetensors")


def commit() -> str:
    """The commit in the file COMMIT; else the working tree's, with `-dirty` if that differs.

    The file is for copies of the tree, whose history may be missing or older than its files.
    """
    root = Path(__file__).resolve().parents[2]
    note = root / "COMMIT"
    if note.exists():
        return note.read_text().strip()

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() == root:
            changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!results")
            return git("rev-parse", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.SubprocessError):
        pass
    return "unknown"


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads ({platform.machine()})"


def versions() -> dict[str, str]:
    numbers = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            numbers[package] = version(package)
        except ImportError:
            continue
    if torch.version.cuda:
        numbers["cuda"] = torch.version.cuda
    return numbers


PLACES = ("--data.root", "--data-root", "--out")
"""Options that name a folder of one machine."""


def without_places(words: list[str]) -> list[str]:
    """The words of a command but for folders that are a machine's own."""
    kept: list[str] = []
    skip = False
    for word in words:
        if not skip and word not in PLACES and not word.startswith(tuple(f"{p}=" for p in PLACES)):
            kept.append(word)
        skip = word in PLACES
    return kept


def command_line() -> str:
    """The command that a person would type to get this again."""
    script, words = Path(sys.argv[0]), without_places(sys.argv[1:])
    module = script.name == "__main__.py" and script.parent.name in ("torchcaps", "cli")
    if script.name == "torchcaps" or module:
        return shlex.join(["torchcaps", *words])
    if script.suffix == ".py":
        near = script.resolve().is_relative_to(Path.cwd())
        shown = script.resolve().relative_to(Path.cwd()) if near else script.name
        return shlex.join(["python", str(shown), *words])
    return "torchcaps.fit(…)"


def environment(device: torch.device, command: str = "") -> dict[str, Any]:
    """command: the one that gives this number again, where it is not this process's own"""
    return {
        "command": command or command_line(),
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device_name(device),
        "versions": versions(),
    }
