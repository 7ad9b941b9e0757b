"""Jobs on this machine: in this process one by one, or side by side in processes of loky."""

import os
import signal
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from typing import Any

from torchcaps.errors import Interrupted
from torchcaps.places.job import work
from torchcaps.places.run import Ended

GRACE = 120.0
"""Seconds in which interrupted runs write their checkpoints."""


def _keep_memory() -> None:
    """A worker keeps torch and data in memory; loky would take that for a leak and replace it."""
    from joblib.externals.loky import process_executor

    process_executor._USE_PSUTIL = False


class InProcess:
    """One job at a time in this process: nothing to start, and Ctrl-C reaches the run itself."""

    at_once, remote, shares_device, poll = 1, False, False, 0.0

    def __init__(self) -> None:
        self.texts: list[str] = []

    def submit(self, jobs: Sequence[str]) -> None:
        self.texts += jobs

    def wait(self, seconds: float) -> list[Ended]:
        del seconds
        return [Ended(text, work(text)) for text in [self.texts.pop(0)]] if self.texts else []

    def close(self, interrupted: bool) -> str:
        del interrupted
        return ""


class Local:
    """Jobs side by side. Each worker is an executor of its own, so that a killed one (for memory)
    loses its own job and no other.
    """

    remote, shares_device, poll = False, True, 0.3

    def __init__(self, at_once: int):
        self.at_once = at_once
        self.idle: list[Any] = []
        self.running: dict[Future[str], tuple[Any, str]] = {}
        self.pids: dict[Future[str], int] = {}

    def _executor(self) -> Any:
        from joblib.externals.loky import ProcessPoolExecutor

        if self.idle:
            return self.idle.pop()
        threads = str(max(1, (os.cpu_count() or 1) // self.at_once))
        env = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": threads}
        return ProcessPoolExecutor(max_workers=1, initializer=_keep_memory, env=env)

    def submit(self, jobs: Sequence[str]) -> None:
        for text in jobs:
            executor = self._executor()
            pid = executor.submit(os.getpid)
            future = executor.submit(work, text)
            self.running[future] = executor, text
            pid.add_done_callback(lambda found, future=future: self._note(future, found))

    def _note(self, future: Future[str], pid: Future[int]) -> None:
        with suppress(Exception):  # a worker killed at its start
            self.pids[future] = pid.result()

    def wait(self, seconds: float) -> list[Ended]:
        from joblib.externals.loky.process_executor import BrokenProcessPool

        ended = []
        for future in wait(self.running, seconds, FIRST_COMPLETED).done:
            executor, text = self.running.pop(future)
            self.pids.pop(future, None)
            try:
                ended.append(Ended(text, future.result()))
                self.idle.append(executor)
            except Interrupted:  # a signal for this worker alone: its run continues
                ended.append(Ended(text, "stopped by a signal", lost=True))
                self.idle.append(executor)
            except BrokenProcessPool:
                executor.shutdown(wait=False, kill_workers=True)
                ended.append(Ended(text, "killed, perhaps for memory", lost=True))
        return ended

    def close(self, interrupted: bool) -> str:
        """Interrupted runs write a checkpoint and end."""
        if interrupted:
            for pid in list(self.pids.values()):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            wait(self.running, GRACE)
        for executor in [*self.idle, *(executor for executor, _ in self.running.values())]:
            executor.shutdown(wait=True, kill_workers=True)
        self.idle, self.running = [], {}
        return ""
