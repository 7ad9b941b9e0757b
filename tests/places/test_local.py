"""Workers of this machine: one that is killed loses its own job, and that runs again."""

import signal
import threading
import time

import pytest

from tests.places.test_run import job
from torchcaps.places import run_jobs
from torchcaps.places.local import Local
from torchcaps.places.run import LOSSES, Runner

pytestmark = pytest.mark.slow  # each worker imports torch


def test_killed_and_interrupted_workers_leave_the_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    jobs = [
        job("killed_once", file="once", times=1),
        job("killed_once", name="always", file="always", times=99),
        job("interrupted_once", file="stopped"),
        *(job("append", name=f"n{n}", file="others", text=str(n)) for n in range(4)),
    ]
    errors = {outcome.job.name: outcome.error for outcome in run_jobs(jobs, at_once=2)}
    assert "memory" in errors.pop("always") and len(errors) == 6 and not any(errors.values())
    assert (tmp_path / "always").read_text().count("killed") == LOSSES
    assert (tmp_path / "once").read_text() == "killed\n"
    assert (tmp_path / "stopped").read_text() == "interrupted\nended\n"
    assert sorted((tmp_path / "others").read_text().split()) == list("0123")


def test_term_ends_the_driver_and_its_workers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = Local(2)
    with pytest.raises(KeyboardInterrupt), Runner(place) as runner:
        runner.give([job("wait_for", name=str(n), file="never") for n in range(2)])
        while len(place.pids) < 2:
            time.sleep(0.05)
        pids = list(place.pids.values())
        threading.Timer(0.2, signal.raise_signal, (signal.SIGTERM,)).start()
        while True:
            runner.collect()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            __import__("os").kill(pid, 0)
