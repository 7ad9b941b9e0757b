"""Accuracy curves computed in the background, one job at a time with a short queue."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

import torch

from torchcaps.analysis.plots import evenly
from torchcaps.data import Split
from torchcaps.data.dataset import Batch
from torchcaps.metrics.accuracy import logits_of
from torchcaps.metrics.robustness import GRIDS, transformed
from torchcaps.models import Model

WAITING, IMAGES, FINISHED = 4, 200, 32
"""Length of the queue, number of test images of a curve, and finished jobs to remember."""
CURVES = {**GRIDS, "rotation": tuple(range(-180, 181, 15))}


class Busy(Exception):
    """The queue is full."""


@dataclass
class Job:
    """A curve that is being computed: its points so far and its state."""

    id: str
    total: int
    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)
    state: str = "waiting"
    error: str = ""
    cancelled: threading.Event = field(default_factory=threading.Event)

    def status(self) -> dict[str, Any]:
        """State and points as plain values."""
        status = {"state": self.state, "total": self.total, "x": self.x[:], "y": self.y[:]}
        return {**status, "error": self.error} if self.error else status


class Jobs:
    """Jobs by id, run in order by one thread."""

    def __init__(self):
        self._pool = ThreadPoolExecutor(1, "curve")
        self.known: dict[str, Job] = {}

    def start(self, model: Model, split: Split, transformation: str) -> Job:
        """Queue a curve; raise `Busy` if the queue is full."""
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
            self.known[key].state = "cancelled"

    @torch.no_grad()
    def _run(self, job: Job, model: Model, split: Split, transformation: str) -> None:
        try:
            batch = curve_batch(split)
            for amount in CURVES[transformation]:
                if job.cancelled.is_set():
                    job.state = "cancelled"
                    return
                accuracy = accuracy_at(model, batch, transformation, amount)
                job.x.append(float(amount))
                job.y.append(accuracy)
                job.state = "running"
            job.state = "done"
        except Exception as error:  # the client gets the message; the server keeps running
            job.error = f"{type(error).__name__}: {error}".split("\n")[0]
            job.state = "failed"

    def close(self) -> None:
        for job in self.known.values():
            job.cancelled.set()
        self._pool.shutdown(wait=False, cancel_futures=True)


def curve_batch(split: Split) -> Batch:
    """Images of an accuracy curve, evenly over a split."""
    return split.batch(evenly(len(split), IMAGES))


def accuracy_at(model: Model, batch: Batch, transformation: Any, amount: float) -> float:
    """Accuracy on the labeled images of a batch under one transformation."""
    images = transformed(batch.images, transformation, amount)
    classes = torch.cat([logits_of(model.encode(chunk)).argmax(-1) for chunk in images.split(50)])
    has_label = batch.labels >= 0
    return float((classes == batch.labels)[has_label].float().mean())
