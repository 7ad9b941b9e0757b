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


class DeviceLock:
    """A run's turn on its device, from `wait` on until the block ends; the lock ends with the
    process.
    """

    def __init__(self, device: torch.device, asked: bool):
        """asked: whether this run takes turns; one that does not never waits"""
        self.lock = FileLock(lock_of(device)) if asked else None
        self.ticket: FileLock | None = None

    def __enter__(self) -> "DeviceLock":
        return self

    def __exit__(self, *_: object) -> None:
        self._leave_queue()
        if self.lock is not None:
            self.lock.release()

    def _queue(self) -> None:
        """Take a ticket: a file whose name tells since when, locked for as long as one waits."""
        assert self.lock is not None
        name = f"{self.lock.lock_file}.{time.time_ns()}.{os.getpid()}"
        self.ticket = FileLock(name)
        self.ticket.acquire()

    def _leave_queue(self) -> None:
        if self.ticket is not None:
            Path(self.ticket.lock_file).unlink(missing_ok=True)
            self.ticket.release()
            self.ticket = None

    def _next(self) -> bool:
        """True if no process has waited longer; removes tickets of dead processes."""
        assert self.lock is not None and self.ticket is not None
        whole, mine = Path(self.lock.lock_file), Path(self.ticket.lock_file)
        for other in sorted(whole.parent.glob(f"{whole.name}.*")):
            if other >= mine:
                break
            held = FileLock(other)
            try:
                held.acquire(timeout=0)
            except Timeout:
                return False
            other.unlink(missing_ok=True)
            held.release()
        return True

    def wait(self, stop: Event, say: Callable[[str], object]) -> float:
        """Until no other run has its turn or waits for longer, or `stop` is set. -> the seconds
        that it took
        """
        start, reported = time.monotonic(), False
        while self.lock is not None and not self.lock.is_locked and not stop.is_set():
            try:
                if self.ticket is None:
                    self._queue()
                if self._next():
                    self.lock.acquire(timeout=SOON)
                    break
                stop.wait(SOON)
            except Timeout:  # an OSError too
                pass
            except OSError as error:
                place = self.lock.lock_file
                raise TorchcapsError(f"{place}: cannot be locked ({error.strerror}).") from None
            if not reported:
                say("Another run takes its steps on this device; this one waits for its turn.")
            reported = True
        self._leave_queue()
        return time.monotonic() - start
