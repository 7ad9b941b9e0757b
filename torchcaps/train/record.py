"""The run record: what was measured, by which command, commit and device."""

import json
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
    """Of the working tree, with `-dirty` if it differs; else what the file COMMIT says.

    The file is for copies of the tree that travel without their history.
    """
    root = Path(__file__).resolve().parents[2]

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
    note = root / "COMMIT"
    return note.read_text().strip() if note.exists() else "unknown"


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads ({platform.machine()})"


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except ImportError:
            continue
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    return found


def command_line() -> str:
    if Path(sys.argv[0]).name in ("torchcaps", "__main__.py", "cli.py"):
        return shlex.join(["torchcaps", *sys.argv[1:]])
    return "torchcaps.train(…) in Python"


def environment(device: torch.device) -> dict[str, Any]:
    return {
        "command": command_line(),
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device_name(device),
        "versions": versions(),
    }


def append_results(record: dict[str, Any], folder: Path) -> Path:
    """A line for each measured number, for the paper's tables."""
    recipe = record["recipe"]
    path = folder / f"{recipe['paper'] or 'other'}.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    shared = {
        "paper": recipe["paper"],
        "table": recipe["table"],
        "row": recipe["row"],
        "protocol": recipe["protocol"],
        "seed": recipe["seed"],
        "recipe": recipe["name"],
    }
    facts = {k: v for k, v in record.items() if k not in ("recipe", "results")}
    with path.open("a") as file:
        for result in record["results"]:
            file.write(json.dumps({**shared, **result, **facts}) + "\n")
    return path
