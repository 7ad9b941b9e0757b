"""Several runs on one device: all load, compile and are measured side by side, one takes steps.

Runs that take their steps at the same time on one GPU are slower together than one after the other,
and a run that compiles leaves the GPU idle. In turns it always has work, of one run.
"""

import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

import torch
from filelock import FileLock, Timeout

from torchcaps.errors import TorchcapsError

SOON = 0.2
"""Seconds between two looks at whether somebody wants this run to stop."""


def lock_of(device: torch.device) -> Path:
    """The file whose lock the run has that takes its steps on a device: one a user and device."""
    name = platform.node()
    if device.type == "cuda":
        name = str(torch.cuda.get_device_properties(device).uuid)
    user = os.getuid() if hasattr(os, "getuid") else 0
    return Path(tempfile.gettempdir()) / f"torchcaps-{user}-{device.type}-{name}.lock"


class Turn:
    """A run's turn on its device, from `wait` on until the block ends; the lock ends with the
    process.
    """

    def __init__(self, device: torch.device, asked: bool):
        """asked: whether this run takes turns; one that does not never waits"""
        self.lock = FileLock(lock_of(device)) if asked else None

    def __enter__(self) -> "Turn":
        return self

    def __exit__(self, *_: object) -> None:
        if self.lock is not None:
            self.lock.release()

    def wait(self, stop: Event, say: Callable[[str], object]) -> float:
        """Until no other run has its turn, or `stop` is set. -> the seconds that it took"""
        began, told = time.monotonic(), False
        while self.lock is not None and not self.lock.is_locked and not stop.is_set():
            try:
                self.lock.acquire(timeout=SOON)
            except Timeout:  # an OSError too
                if not told:
                    say("Another run takes its steps on this device; this one waits for its turn.")
                told = True
            except OSError as error:
                place = self.lock.lock_file
                raise TorchcapsError(f"{place}: cannot be locked ({error.strerror}).") from None
        return time.monotonic() - began
