"""Accuracy curves, computed in the background a point at a time: one runs, a few wait."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

import torch

from torchcaps.analysis.accuracy import logits_of
from torchcaps.analysis.robustness import GRIDS, transformed
from torchcaps.data import Split
from torchcaps.data.dataset import Batch
from torchcaps.models import CapsuleModel

WAITING, IMAGES, FINISHED = 4, 200, 32
"""Jobs that may wait, test images of a curve, and finished jobs that are remembered."""
CURVES = {**GRIDS, "rotation": tuple(range(-180, 181, 15))}


class Busy(Exception):
    """As many jobs wait as may."""


@dataclass
class Job:
    """A curve on its way: what it has so far, and whether anybody still wants it."""

    id: str
    total: int
    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)
    state: str = "waiting"
    error: str = ""
    changed: threading.Condition = field(default_factory=threading.Condition)
    cancelled: threading.Event = field(default_factory=threading.Event)

    def told(self) -> dict[str, Any]:
        said = {"state": self.state, "total": self.total, "x": self.x[:], "y": self.y[:]}
        return {**said, "error": self.error} if self.error else said

    def tell(self, state: str) -> None:
        with self.changed:
            self.state = state
            self.changed.notify_all()


class Jobs:
    def __init__(self):
        self._pool = ThreadPoolExecutor(1, "curve")
        self.known: dict[str, Job] = {}

    def start(self, model: CapsuleModel, split: Split, transformation: str) -> Job:
        ended = [k for k, j in self.known.items() if j.state not in ("waiting", "running")]
        for key in ended[:-FINISHED]:
            del self.known[key]
        if len(self.known) - len(ended) > WAITING:
            raise Busy
        job = Job(token_hex(8), len(CURVES[transformation]))
        self.known[job.id] = job
        self._pool.submit(self._run, job, model, split, transformation)
        return job

    def cancel(self, key: str) -> None:
        self.known[key].cancelled.set()
        if self.known[key].state == "waiting":
            self.known[key].tell("cancelled")

    @torch.no_grad()
    def _run(self, job: Job, model: CapsuleModel, split: Split, transformation: str) -> None:
        try:
            rows = torch.linspace(0, len(split) - 1, min(IMAGES, len(split))).long()
            batch = split.batch(rows)
            for amount in CURVES[transformation]:
                if job.cancelled.is_set():
                    return job.tell("cancelled")
                right = right_under(model, batch, transformation, amount)
                job.x.append(float(amount))
                job.y.append(right)
                job.tell("running")
            job.tell("done")
        except Exception as error:  # told to whoever listens; the server goes on
            job.error = f"{type(error).__name__}: {error}".split("\n")[0]
            job.tell("failed")

    def close(self) -> None:
        for job in self.known.values():
            job.cancelled.set()
        self._pool.shutdown(wait=False, cancel_futures=True)


def right_under(model: CapsuleModel, batch: Batch, transformation: Any, amount: float) -> float:
    images = transformed(batch.images, transformation, amount)
    said = torch.cat([logits_of(model.encode(part)).argmax(-1) for part in images.split(50)])
    labelled = batch.labels >= 0
    return float((said == batch.labels)[labelled].float().mean())
