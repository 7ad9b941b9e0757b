"""Jobs as tasks of a Ray cluster; each has a process of its own, and Ray runs lost ones again."""

import json
import os
import signal
import socket
from collections.abc import Sequence
from typing import Any

from torchcaps.errors import Interrupted, TorchcapsError, require
from torchcaps.places.job import work
from torchcaps.places.run import Ended

RETRIES = 10
"""Times that Ray runs a task again whose process or node was lost."""
GRACE = 60.0
"""Seconds in which interrupted runs write their checkpoints."""
AT_ONCE = 1000
SECONDS = 10.0
"""Seconds until an address counts as dead."""


def ray_task(text: str, variables: dict[str, str]) -> str:
    """`work` as a task: an interrupted run has no result, so that Ray runs it again."""
    os.environ.update(variables)  # an argument, since Ray's agent logs the env_vars of runtime_env
    try:
        return work(text)
    except Interrupted as stopped:
        if stopped.signal == signal.SIGINT:  # cancelled by the driver
            return "stopped"
        os._exit(128 + signal.SIGTERM)


class RayCluster:
    """Tasks of a Ray cluster. The driver must run on a machine of the cluster."""

    remote, poll = True, 1.0

    def __init__(
        self, address: str, at_once: int, *, local: int, gpus: float, cpus: float,
        variables: dict[str, str],
    ):  # fmt: skip
        """address: HOST:PORT; empty: that of RAY_ADDRESS or of this machine's cluster.
        local: start a cluster here with so many CPUs. variables: environment of the jobs
        """
        self.variables = variables
        self.ray = require("ray", "ray")
        self.at_once, self.shares_device = at_once or AT_ONCE, 0 < gpus < 1
        if address and "://" not in address:
            _check_answer(address)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reports its use otherwise
        where: dict[str, Any] = {"num_cpus": local} if local else {"address": address or "auto"}
        if "PYTHONPATH" in os.environ:
            variables = {"PYTHONPATH": os.environ["PYTHONPATH"]}
            where["runtime_env"] = {"env_vars": variables}
        try:
            self.ray.init(**where, log_to_driver=False, include_dashboard=False if local else None)
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = str(error).strip().split("\n")[0]
            raise TorchcapsError(
                f"--on ray: {reason} Name the cluster: --on ray:HOST:6379, or start one here: "
                "--on ray:local=4."
            ) from None
        # a process for each run: nothing is left of torch.compile, CUDA and signals
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": RETRIES, "max_calls": 1}
        self.task = self.ray.remote(**options)(ray_task)
        self.running: dict[Any, str] = {}

    def submit(self, jobs: Sequence[str]) -> None:
        for text in jobs:
            if json.loads(text)["processes"] > 1:
                raise TorchcapsError(
                    "--on ray: a job is one process. For one training on several devices, use "
                    "--on slurm or torchrun."
                )
            self.running[self._start(text)] = text

    def _start(self, text: str) -> Any:
        return self.task.options(name="torchcaps").remote(text, self.variables)

    def wait(self, seconds: float) -> list[Ended]:
        done, _ = self.ray.wait(list(self.running), timeout=seconds)
        return [self._end(reference) for reference in done]

    def _end(self, reference: Any) -> Ended:
        text = self.running.pop(reference)
        errors = self.ray.exceptions
        try:
            return Ended(text, self.ray.get(reference))
        except errors.RayTaskError as error:  # the environment of the node
            return Ended(text, str(error).strip().split("\n")[-1])
        except errors.RayError as error:
            return Ended(text, str(error).strip().split("\n")[0], lost=True)

    def close(self, interrupted: bool) -> str:
        """Interrupted runs write a checkpoint and end."""
        if interrupted and self.running:
            for reference in self.running:
                self.ray.cancel(reference)
            self.ray.wait(list(self.running), num_returns=len(self.running), timeout=GRACE)
        self.ray.shutdown()
        return ""


def _check_answer(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), SECONDS).close()
    except (OSError, ValueError):
        raise TorchcapsError(f"--on ray: nothing answers at {address}.") from None
