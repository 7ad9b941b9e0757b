"""Run jobs at a place: give out, collect, give out again what was lost."""

import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from torchcaps.errors import UsageError, nearest
from torchcaps.escape import for_terminal
from torchcaps.places.job import Job, Outcome, code_version

LOSSES = 3
"""Times that a job may be lost, with its process or its node, before it counts as failed."""


class Ended(NamedTuple):
    """A job that ended, by its JSON. lost: its process ended without a result"""

    text: str
    error: str = ""
    lost: bool = False


class Place(Protocol):
    """A place where jobs run. `submit` returns at once; `wait` returns the jobs that ended."""

    at_once: int
    """Number of jobs that are given out at the same time."""
    remote: bool
    """Jobs run on other machines, whose code may differ."""
    shares_device: bool
    """Several jobs may run on one GPU: they should take turns (`hardware.in_turn`)."""
    poll: float
    """Seconds between two looks at running jobs."""

    def submit(self, jobs: Sequence[str]) -> None: ...

    def wait(self, seconds: float) -> list[Ended]: ...

    def close(self, interrupted: bool) -> str:
        """Release workers; after an interruption stop jobs or leave them. -> what to tell"""
        ...


def _variables(names: str) -> dict[str, str]:
    """Environment variables by their names, HF_TOKEN+WANDB_API_KEY, which a place's jobs get."""
    chosen = [name for name in names.split("+") if name]
    for name in chosen:
        if name not in os.environ:
            raise UsageError(f"--env {name}: no such environment variable here. Export it first.")
    return {name: os.environ[name] for name in chosen}


def _local(*, at_once: int, env: str = "") -> Place:
    from torchcaps.places.local import InProcess, Local

    _variables(env)  # jobs here have them all
    return Local(at_once) if at_once > 1 else InProcess()


def _slurm(
    *, at_once: int, partition: str = "", time: str = "", gpus: int = 0, cpus: int = 0,
    mem: str = "", account: str = "", qos: str = "", constraint: str = "", grace: int = 90,
    env: str = "",
) -> Place:  # fmt: skip
    from torchcaps.places.slurm import Slurm

    if names := ",".join(_variables(env)):
        os.environ["SBATCH_EXPORT"] = f"ALL,{names}"  # names alone: values are in no file of ours
    words = {"partition": partition, "account": account, "qos": qos, "constraint": constraint}
    return Slurm(at_once, time=time, gpus=gpus, cpus=cpus, mem=mem, grace=grace, words=words)


def _ray(
    address: str = "", *, at_once: int, local: int = 0, gpus: float = 0.0, cpus: float = 1.0,
    env: str = "",
) -> Place:  # fmt: skip
    from torchcaps.places.ray import RayCluster

    return RayCluster(
        address, at_once, local=local, gpus=gpus, cpus=cpus, variables=_variables(env)
    )


PLACES: dict[str, Callable[..., Place]] = {"local": _local, "slurm": _slurm, "ray": _ray}


def check_place(on: str) -> str:
    """The name of the place in `on`; needs no extra and no cluster."""
    name = re.split("[:,]", on)[0]
    if name not in PLACES:
        raise UsageError(f"--on: unknown place {name!r}. {nearest(name, list(PLACES))}")
    return name


def with_env(on: str, names: Sequence[str]) -> str:
    """The place whose jobs also get these environment variables of the driver."""
    for name in names:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UsageError(f"--env {name}: give the names of environment variables, no values.")
    return ",".join([on, *(["env=" + "+".join(names)] if names else [])])


def get_place(on: str, at_once: int = 0) -> Place:
    """A place by its name and options: local, slurm:partition=gpu,time=4h, ray:HOST:6379,gpus=0.25

    at_once: jobs at the same time; 0: one here, as many as the place takes elsewhere
    """
    from torchcaps.data.spec import call

    return call(PLACES[check_place(on)], on, at_once=at_once)


class Runner:
    """Jobs at a place: `give` some, `collect` those that ended; `with` stops what still runs."""

    def __init__(self, place: Place):
        self.place = place
        self.running: dict[str, Job] = {}
        self.losses: dict[str, int] = {}
        self._code = code_version() if place.remote else ""
        self._handler: Any = None

    @property
    def free(self) -> int:
        return self.place.at_once - len(self.running)

    def give(self, jobs: Sequence[Job]) -> None:
        texts = {job.to_json(self._code): job for job in jobs}
        self.running |= texts
        if texts:
            self.place.submit(list(texts))

    def collect(self, seconds: float | None = None) -> list[Outcome]:
        """Jobs that ended, after at most so many seconds."""
        outcomes, again = [], []
        for text, error, lost in self.place.wait(self.place.poll if seconds is None else seconds):
            job = self.running[text]
            self.losses[text] = self.losses.get(text, 0) + lost
            if lost and self.losses[text] < LOSSES:
                again.append(text)
                continue
            del self.running[text]
            if lost:
                error = f"its process was lost {LOSSES} times ({error})"
            outcomes.append(Outcome(job, error))
        if again:
            self.place.submit(again)
        return outcomes

    def __enter__(self) -> "Runner":
        ours = threading.current_thread() is threading.main_thread()
        if ours and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # TERM stops as Ctrl-C does
            self._handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            message = self.place.close(interrupted=kind is not None)
            if message:
                print(f"torchcaps: {for_terminal(message)}", file=sys.stderr)
        finally:
            if self._handler is not None:
                signal.signal(signal.SIGTERM, self._handler)


def run_jobs(jobs: Iterable[Job], on: str | Place = "local", at_once: int = 0) -> Iterator[Outcome]:
    """Run jobs at a place; yields each when it ends, in any order."""
    place = get_place(on, at_once) if isinstance(on, str) else on
    pending = list(jobs)
    with Runner(place) as runner:
        while pending or runner.running:
            given, pending = pending[: runner.free], pending[runner.free :]
            runner.give(given)
            yield from runner.collect()
