"""SLURM: jobs through submitit, interrupted ones requeued, on a real cluster in nightly tests."""

import json
import os
import signal
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.places import kill_node
from tests.places.slurm_cluster import Cluster, available
from tests.places.test_run import job
from torchcaps.errors import Interrupted, TorchcapsError, UsageError
from torchcaps.places import Job, get_place, run_jobs, slurm
from torchcaps.places.run import check_place
from torchcaps.training.loop import start
from torchcaps.training.recipe import to_dict
from torchcaps.training.run import Run

CLUSTER = pytest.mark.skipif(not available(), reason="needs root, slurm-wlm and munge")


@pytest.mark.parametrize("text, wanted", [
    ("90m", 90), ("4h", 240), ("2d", 2880), ("1-12:00:00", 2160), ("00:00:30", 1),
])  # fmt: skip
def test_time_limits(text, wanted):
    assert slurm.minutes(text) == wanted


def test_a_wrong_time_limit_and_a_machine_without_slurm(monkeypatch):
    with pytest.raises(UsageError, match="write 90m"):
        slurm.minutes("4 hours")
    monkeypatch.setenv("PATH", "")
    assert check_place("slurm:partition=gpu,time=4h,gpus=1") == "slurm"  # --dry asks for no more
    with pytest.raises(TorchcapsError, match="no sbatch"):
        get_place("slurm:partition=gpu,time=4h,gpus=1")


@pytest.mark.parametrize("number, raised", [
    (signal.SIGUSR2, ["SIGUSR2"]), (signal.SIGUSR1, ["SIGUSR2"]), (signal.SIGTERM, []),
])  # fmt: skip
def test_an_interrupted_run_is_requeued_and_never_a_result(number, raised, monkeypatch):
    seen = []

    class Ended(BaseException):
        pass

    def interrupted(text):
        raise Interrupted(text, number)

    def end(code):
        raise Ended(code)

    monkeypatch.setattr(slurm, "work", interrupted)
    monkeypatch.setattr(slurm.signal, "raise_signal", lambda n: seen.append(signal.Signals(n).name))
    monkeypatch.setattr(slurm.time, "sleep", lambda _: None)
    monkeypatch.setattr(slurm.os, "_exit", end)
    with pytest.raises(Ended, match="143"):
        slurm.Requeued()("a run")
    assert seen == raised
    assert slurm.Requeued().checkpoint("a run").args == ("a run",)


class OnThisMachine(slurm.Slurm):
    """submitit's local executor, which has no queue."""

    poll = 0.2

    def __init__(self):
        super().__init__(0, time="10m", gpus=0, cpus=0, mem="", grace=90, words={}, cluster="local")

    def _queue(self):
        return {job.job_id for job, _ in self.running.values() if job.state == "RUNNING"}

    def _state(self, number):
        return ""


@pytest.mark.slow
def test_three_jobs_by_submitit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setattr(slurm, "FOLDER", Path("jobs"))
    monkeypatch.setattr(slurm, "QUEUE_SECONDS", 0.5)
    jobs = [
        job("append", file="out", text="x"),
        job("fail", message="wrong"),
        job("killed_once", file="killed", times=1),
    ]
    errors = {o.job.name: o.error for o in run_jobs(jobs, OnThisMachine())}
    assert errors == {"append": "", "fail": "wrong", "killed_once": ""}
    assert (tmp_path / "out").read_text() == "x\n"
    assert (tmp_path / "killed").read_text() == "killed\n"


@pytest.mark.slurm
@CLUSTER
def test_a_lost_node_and_a_killed_driver(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = kill_node.main("slurm", tmp_path)
    assert found["recorded once"] and found["bit-identical"] == kill_node.RUNS, found


@pytest.mark.slurm
@CLUSTER
def test_named_variables_reach_jobs_and_no_file_has_their_values(tmp_path, monkeypatch):
    """On a site whose jobs get no environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    (tmp_path / "slurm").mkdir()
    with Cluster(tmp_path / "slurm") as cluster:
        monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
        monkeypatch.setenv("SBATCH_EXPORT", "NONE")
        monkeypatch.setenv("TOKEN", "a-secret-value")
        tell = job("write_variables", file="found.json", names=["TOKEN"])
        outcomes = list(run_jobs([tell], "slurm:time=10m,env=TOKEN"))
    assert [outcome.error for outcome in outcomes] == [""]
    assert json.loads((tmp_path / "found.json").read_text()) == {"TOKEN": "a-secret-value"}
    files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert files and not any(b"a-secret-value" in path.read_bytes() for path in files)


@pytest.mark.slurm
@CLUSTER
def test_requeued_runs_and_time_limits_end_with_the_same_bits(tmp_path, monkeypatch):
    """One run that `scontrol requeue` ends in the middle, one that its time limit ends twice."""
    recipe = replace(kill_node.RECIPE, epochs=3, checkpoint_seconds=600)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    wanted = start(recipe, tmp_path / "whole").record()["weights_sha256"]

    def slow(name, pause):
        arguments = {
            "recipe": to_dict(recipe), "folder": f"runs/{name}", "command": "c", "metrics": [],
            "results": "results", "in_turn": False, "pause": pause,
        }  # fmt: skip
        return Job("tests.places.functions:train_slowly", arguments, name=name)

    def requeue(environment):
        while not Run(tmp_path / "runs/requeued").metrics_file.exists():
            time.sleep(0.2)
        ids = subprocess.run(
            ["squeue", "-h", "-r", "-o", "%i"], env=environment, capture_output=True, text=True
        ).stdout.split()
        subprocess.run(["scontrol", "requeue", sorted(ids)[0]], env=environment, check=True)

    (tmp_path / "slurm").mkdir()
    with Cluster(tmp_path / "slurm") as cluster:
        monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
        threading.Thread(target=requeue, args=(dict(os.environ),)).start()
        place = get_place("slurm:time=1m,grace=35")
        # the limit leaves 25 s a take for 60 steps of a second
        outcomes = list(run_jobs([slow("requeued", 0.3), slow("limited", 1.0)], place))
    assert [outcome.error for outcome in outcomes] == ["", ""]
    for name in ("requeued", "limited"):
        record = Run(tmp_path / "runs" / name).record()
        assert record["weights_sha256"] == wanted
    results = tmp_path / "results/other.jsonl"
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    keys = {(line["run"], line["split"], line["metric"]) for line in lines}
    assert len({line["run"] for line in lines}) == 2 and len(keys) == len(lines)
    said = "".join(path.read_text() for path in (tmp_path / "runs/.slurm").glob("*.err"))
    assert said.count("Caught signal SIGUSR2") >= 2
