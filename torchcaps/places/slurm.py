"""Jobs on a SLURM cluster through submitit: arrays of jobs that SLURM itself requeues.

What is submitted is in runs/.slurm, with each job's output. A driver that ends leaves its jobs in
the queue; the next one collects those that still are there.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from torchcaps.errors import Interrupted, TorchcapsError, UsageError, require
from torchcaps.places.job import work
from torchcaps.places.run import Ended

FOLDER = Path("runs/.slurm")
ARRAY = 1000
"""Jobs of one array; SLURM's MaxArraySize is 1,001 unless the site changed it."""
TAKES = 1000
"""Times that a job may reach its time limit and be requeued."""
QUEUE_SECONDS = 15.0
"""Seconds between two looks at the queue."""
EXIT = 128 + signal.SIGTERM


class Requeued:
    """`work`, as submitit calls it: a run that is interrupted has no result and runs again."""

    def __call__(self, text: str) -> str:
        try:
            return work(text)
        except Interrupted as stopped:
            if stopped.signal in (signal.SIGUSR1, signal.SIGUSR2):  # time limit or preemption
                name = os.environ.get("SUBMITIT_PREEMPT_SIGNAL", "USR2")
                signal.raise_signal(getattr(signal, f"SIG{name}"))  # submitit requeues and exits
                time.sleep(60)  # not the first process of its run: that one requeues
            os._exit(EXIT)  # SLURM requeues by itself, or somebody cancelled the job

    def checkpoint(self, text: str) -> Any:
        """The job that submitit submits again; the state of a run is its folder."""
        return require("submitit", "slurm").helpers.DelayedSubmission(self, text)


class Slurm:
    """Jobs in SLURM's queue."""

    remote, shares_device, poll = True, False, 5.0

    def __init__(
        self, at_once: int, *, time: str, gpus: int, cpus: int, mem: str, grace: int,
        words: dict[str, str], cluster: str = "slurm",
    ):  # fmt: skip
        """words: partition and other options of sbatch; cluster: "local" in tests"""
        self.submitit = require("submitit", "slurm")
        if cluster == "slurm" and not shutil.which("sbatch"):
            raise TorchcapsError(
                "--on slurm: this machine has no sbatch. Run the command on a login node."
            )
        self.at_once, self.cluster, self.folder = at_once or ARRAY, cluster, FOLDER.absolute()
        parameters = {f"slurm_{name}": value for name, value in words.items() if value}
        parameters |= {"slurm_mem": mem} if mem else {}
        parameters |= {"slurm_gpus_per_node": gpus} if gpus else {}
        parameters |= {"slurm_cpus_per_task": cpus} if cpus else {}
        parameters |= {"slurm_array_parallelism": self.at_once, "slurm_signal_delay_s": grace}
        parameters |= {"slurm_additional_parameters": {"requeue": True}}
        self.parameters = {"timeout_min": minutes(time or "1h"), "name": "torchcaps", **parameters}
        self.running: dict[str, tuple[Any, int]] = {}
        self.missed: dict[str, int] = {}
        self.looked = 0.0

    def submit(self, jobs: Sequence[str]) -> None:
        queue, ledger = self._queue(), self._ledger()
        queued = {known: job for known, job in ledger.items() if job in queue}
        by_size: dict[tuple[int, int], list[str]] = {}
        for text in jobs:
            job = json.loads(text)
            if (number := queued.get(_digest(text))) and text not in self.running:
                tasks = list(range(job["processes"]))
                self.running[text] = self._job(number, tasks), job["processes"]
            else:
                by_size.setdefault((job["nodes"], job["processes"]), []).append(text)
        for (nodes, processes), texts in by_size.items():
            for start in range(0, len(texts), ARRAY):
                self._submit_array(texts[start : start + ARRAY], nodes, processes)

    def _submit_array(self, texts: list[str], nodes: int, processes: int) -> None:
        executor = self.submitit.AutoExecutor(
            self.folder, cluster=self.cluster, slurm_max_num_timeout=TAKES
        )
        executor.update_parameters(
            **self.parameters, nodes=nodes, tasks_per_node=processes // nodes
        )
        try:
            jobs = executor.map_array(Requeued(), texts)
        except (subprocess.CalledProcessError, self.submitit.core.utils.FailedJobError) as error:
            reason = str(error).strip().split("\n")[-1]
            raise TorchcapsError(f"sbatch refused the jobs: {reason}") from None
        with (self.folder / "jobs.jsonl").open("a") as ledger:
            for text, job in zip(texts, jobs, strict=True):
                self.running[text] = job, processes
                ledger.write(json.dumps({"sha256": _digest(text), "job": job.job_id}) + "\n")

    def _job(self, number: str, tasks: list[int]) -> Any:
        return self.submitit.SlurmJob(folder=self.folder, job_id=number, tasks=tasks)

    def _ledger(self) -> dict[str, str]:
        """The last job of each text that was submitted from here."""
        path = self.folder / "jobs.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        entries = [json.loads(line) for line in lines if line.endswith("}")]
        return {entry["sha256"]: entry["job"] for entry in entries}

    def _queue(self) -> set[str]:
        """The jobs of this user that wait or run."""
        user = str(os.getuid())
        command = ["squeue", "--noheader", "--array", "--format=%i", f"--user={user}"]
        return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())  # fmt: skip # noqa: E501

    def wait(self, seconds: float) -> list[Ended]:
        ends = time.monotonic() + seconds
        while True:
            ended = [end for text in list(self.running) if (end := self._end(text))]
            if not ended and time.monotonic() - self.looked > QUEUE_SECONDS:
                self.looked = time.monotonic()
                ended = self._lost()
            for end in ended:
                del self.running[end.text]
            if ended or time.monotonic() >= ends:
                return ended
            time.sleep(min(1.0, seconds))

    def _end(self, text: str) -> Ended | None:
        """The result of a job, where all its processes wrote one."""
        job, processes = self.running[text]
        paths = self.submitit.core.utils.JobPaths
        files = [paths(self.folder, job.job_id, task).result_pickle for task in range(processes)]
        if not all(file.exists() for file in files):
            return None
        try:
            return Ended(text, next(filter(None, job.results()), ""))
        except Exception as error:  # the environment of the node, before torchcaps began
            lines = str(error).strip().splitlines() or [type(error).__name__]
            return Ended(text, f"{lines[-1]} (see {job.paths.stderr})")

    def _lost(self) -> list[Ended]:
        """Jobs that left the queue without a result; a shared folder may show that late."""
        queue, ended = self._queue(), []
        for text, (job, _) in self.running.items():
            missed = 0 if job.job_id in queue else self.missed.get(text, 0) + 1
            self.missed[text] = missed
            if missed > 1:
                self.missed[text] = 0
                cancelled = self._state(job.job_id) == "CANCELLED"
                reason = "cancelled in SLURM" if cancelled else "ended by SLURM without a result"
                ended.append(Ended(text, f"{reason}; see {job.paths.stderr}", lost=not cancelled))
        return ended

    def _state(self, number: str) -> str:
        command = ["scontrol", "--oneliner", "show", "job", number]
        answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        match = re.search(r"JobState=(\w+)", answer)
        return match[1] if match else ""

    def close(self, interrupted: bool) -> str:
        if not interrupted or not self.running:
            return ""
        numbers = " ".join(sorted({job.job_id.split("_")[0] for job, _ in self.running.values()}))
        return (
            f"{len(self.running)} jobs stay in SLURM's queue. The same command collects them; "
            f"scancel {numbers} ends them."
        )


def minutes(text: str) -> int:
    """'90m', '4h', '2d' or SLURM's own '1-12:00:00' in minutes."""
    if match := re.fullmatch(r"(\d+)([mhd])", text):
        return max(1, int(match[1]) * {"m": 1, "h": 60, "d": 1440}[match[2]])
    if match := re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)", text):
        days, hours, minute, second = (int(number or 0) for number in match.groups())
        return max(1, days * 1440 + hours * 60 + minute + (second > 0))
    raise UsageError(f"--on slurm: time={text!r}: write 90m, 4h, 2d or 1-12:00:00.")


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()
