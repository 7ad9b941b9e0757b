"""Children of a process that has imported everything already: half a second each, not five.

For drivers that tests start in a process of their own; a test's own process may have threads.
"""

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torchcaps.training.loop  # noqa: F401  what children would import, each for itself
from torchcaps import data
from torchcaps.data import registry


class Child:
    """A function in a forked process, in a folder of its own; its words go to a file there."""

    def __init__(
        self,
        work: Callable[[], Any],
        folder: Path,
        environment: dict[str, str] | None = None,
        said: Path | None = None,
    ):
        self.said = said or folder / "said.txt"
        self.code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            code = 99
            try:
                words = os.open(self.said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.dup2(words, 1)
                os.dup2(words, 2)
                os.chdir(folder)
                os.environ.update(environment or {})
                code = work() or 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it lives."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code

    def wait(self, seconds: float = 60) -> int:
        ends = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > ends:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise AssertionError(f"a child took more than {seconds} s: {self.words()}")
            time.sleep(0.005)
        assert self.code is not None
        return self.code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def words(self) -> str:
        return self.said.read_text() if self.said.exists() else ""


def use_few_digits() -> None:
    """A twentieth of the digits, loaded once for all children, under their name."""
    whole = data.load("digits")
    parts = (getattr(whole, split)[::20] for split in ("train", "val", "test"))
    few = data.Dataset("digits", *parts, whole.classes)
    entry = registry.entry("digits")
    registry.DATASETS["digits"] = replace(entry, load=lambda root, *, seed: few)


def outcome(folder: Path, run: str = "run", paper: str = "other") -> dict[str, Any]:
    """What must be the same however often a run was killed: its weights byte for byte, its curves,
    its results and their lines, each once; and nothing half done is left.
    """
    place, kept = folder / run, ("data", "split", "metric", "value")
    record = json.loads((place / "record.json").read_text())
    lines = (folder / "results" / f"{paper}.jsonl").read_text().splitlines()
    checkpoints = sorted(path.name for path in (place / "checkpoints").iterdir())
    return {
        "weights": (place / "model/model.safetensors").read_bytes().hex(),
        "metrics": (place / "metrics.jsonl").read_text(),
        "results": [[r[k] for k in kept] for r in record["results"]],
        "lines": sorted([json.loads(line)[k] for k in kept] for line in lines),
        "last checkpoints": checkpoints[-2:],
        "leftovers": [n for n in checkpoints if not n.isdigit()]
        + [path.name for path in place.glob("*.tmp")],
    }
