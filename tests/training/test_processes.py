"""Real processes: killed at random moments and resumed; two that train as one."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from torchcaps.cli import main

TINY = [
    "train", "demo/capsnet", "--epochs", "3", "--batch-size", "200", "--model.channels", "8",
    "--model.num-types", "2", "--model.hidden", "16", "--metrics", "--hardware.accelerator", "cpu",
]  # fmt: skip


def torchcaps(*words, launcher=(), **variables):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    command = [*(launcher or (sys.executable,)), "-m", "torchcaps.cli", *map(str, words)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finished(process) -> str:
    output = process.communicate(timeout=240)[0]
    assert process.returncode == 0, output
    return output


def equal_runs(one: Path, two: Path) -> None:
    a, b = (load_file(run / "model/model.safetensors") for run in (one, two))
    assert a.keys() == b.keys() and all((a[n] == b[n]).all() for n in a)
    assert (one / "metrics.jsonl").read_text() == (two / "metrics.jsonl").read_text()
    results = [json.loads((run / "record.json").read_text())["results"] for run in (one, two)]
    assert results[0] == results[1]


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_with_the_same_bits(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert main([*TINY, "--out", str(whole)]) == 0
    rng = random.Random(0)
    # a checkpoint after every step, so that kills also fall into the writing of one
    process = torchcaps(*TINY, "--checkpoint-seconds", "0", "--out", killed)
    while not list((killed / "checkpoints").glob("0*")):
        assert process.poll() is None
        time.sleep(0.01)
    kills = 0
    while kills < 2:
        time.sleep(rng.uniform(0.0, 0.8))
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += 1
        before = {p.name for p in (killed / "checkpoints").glob("0*")}
        process = torchcaps("resume", killed)
        while process.poll() is None and before == {
            p.name for p in (killed / "checkpoints").glob("0*")
        }:
            time.sleep(0.01)
    finished(process)
    assert kills == 2
    equal_runs(whole, killed)


@pytest.mark.slow
def test_ctrl_c_leaves_a_run_that_resumes(tmp_path):
    run = tmp_path / "run"
    process = torchcaps(*TINY, "--epochs", "200", "--out", run)
    while not (run / "metrics.jsonl").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 130 and f"torchcaps resume {run}" in output
    assert list((run / "checkpoints").glob("0*")) and not (run / "record.json").exists()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def by_torchrun(node, port, *words):
    launcher = (sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node")
    launcher += ("1", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}")
    return torchcaps(*words, launcher=launcher)


def by_srun(node, port, *words):
    """What srun sets in a job of two nodes with one task each."""
    variables = {
        "SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "train", "SLURM_NTASKS": "2", "SLURM_NNODES": "2",
        "SLURM_NTASKS_PER_NODE": "1", "SLURM_PROCID": str(node), "SLURM_NODEID": str(node),
        "SLURM_LOCALID": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    return torchcaps(*words, **variables)


@pytest.fixture(scope="module")
def one_epoch(tmp_path_factory):
    """The metrics of one process after an epoch."""
    run = tmp_path_factory.mktemp("one") / "run"
    assert main([*TINY, "--epochs", "1", "--out", str(run)]) == 0
    return json.loads((run / "metrics.jsonl").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("start_node", [by_torchrun, by_srun])
def test_two_nodes_have_the_loss_curve_of_one(start_node, one_epoch, tmp_path):
    """Two 'nodes' on this machine, started each for itself as a launcher does."""
    options = ("--hardware.num-nodes", "2", "--hardware.strategy", "ddp", "--epochs", "1")
    port = free_port()
    nodes = [
        start_node(node, port, *TINY, *options, "--out", tmp_path / "two") for node in range(2)
    ]
    for node in nodes:
        finished(node)
    two = json.loads((tmp_path / "two/metrics.jsonl").read_text())
    assert two["train_loss"] == pytest.approx(one_epoch["train_loss"], rel=1e-4)
    assert two["val_accuracy"] == pytest.approx(one_epoch["val_accuracy"], abs=0.01)
    assert json.loads((tmp_path / "two/record.json").read_text())["results"]


@pytest.mark.slow
def test_two_processes_have_the_loss_curve_of_one(tmp_path):
    """From the command line; FSDP, and tasks that call any method, are in tasks/test_toys."""
    port = free_port()
    launcher = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
    launcher += ("--master-port", str(port))
    pair = ("--hardware.devices", "2", "--hardware.strategy", "ddp", "--out", tmp_path / "two")
    # checkpoints by the clock: the processes must agree on when
    pair += ("--checkpoint-seconds", "0.11")
    finished(torchcaps(*TINY, *pair, launcher=launcher))
    assert main([*TINY, "--out", str(tmp_path / "one")]) == 0
    curves = [
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    ]
    assert len(curves[0]) == 3
    for one, two in zip(*curves, strict=True):
        assert two["train_loss"] == pytest.approx(one["train_loss"], rel=1e-4)
        assert two["val_accuracy"] == pytest.approx(one["val_accuracy"], abs=0.01)
    records = [json.loads((tmp_path / n / "record.json").read_text()) for n in ("one", "two")]
    assert records[0]["parameters"] == records[1]["parameters"]
