"""A task's own state and its model's methods: parts of a batch, processes, kills, DDP and FSDP."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
import torch

from tests.training.tasks.toys import RUNS, Counting, TwoCalls, recipe
from torchcaps.training import checkpoint
from torchcaps.training.loop import start


def toy(*words, processes=1):
    launcher = [sys.executable]
    if processes > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        launcher += ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
        launcher += ["--master-port", port]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*launcher, "-m", "tests.training.tasks.toys", *map(str, words)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def ended(process):
    output = process.communicate(timeout=240)[0]
    assert process.returncode == 0, output


def state(folder):
    """The task's own tensors at the end of a run."""
    weights = checkpoint.load_last(folder / "checkpoints")[1]
    return {name: t for name, t in weights.items() if not name.startswith("model.")}


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy") / "whole"
    start(recipe(Counting()), folder)
    return folder


def test_state_counts_updates(whole):
    found = state(whole)
    assert int(found["clock"]) == 40 and found["boost"].sum() > 0 and found["bright"].sum() > 0
    lines = metrics(whole)
    assert [line["step"] for line in lines] == [20, 40]
    assert "train_ink" in lines[0] and "val_ink" in lines[0] and "train_bright" not in lines[0]


def test_state_is_the_same_however_a_batch_is_cut(whole, tmp_path):
    start(recipe(Counting(), accumulate=4), tmp_path / "parts")
    found = state(tmp_path / "parts")
    assert all(torch.equal(t, found[name]) for name, t in state(whole).items())


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Runs of two processes, in one launch: imports take them longer than the training."""
    folder = tmp_path_factory.mktemp("pairs")
    ended(toy(folder, *(name for name in RUNS if name != "counting"), processes=2))
    return folder


@pytest.mark.slow
def test_state_is_the_same_on_two_processes(whole, pairs):
    found = state(pairs / "counting-ddp")
    assert all(torch.equal(t, found[name]) for name, t in state(whole).items())


@pytest.mark.slow
def test_state_survives_a_kill(whole, tmp_path):
    folder = tmp_path / "counting"
    process = toy(tmp_path, "counting")
    while not any(int(p.name) > 5 for p in (folder / "checkpoints").glob("0*[0-9]")):
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (folder / "record.json").exists()
    ended(toy(tmp_path, "counting"))
    found = checkpoint.load_last(folder / "checkpoints")
    wanted = checkpoint.load_last(whole / "checkpoints")
    for one, two in zip(found[1:3], wanted[1:3], strict=True):
        assert all(torch.equal(one[name], two[name]) for name in two)
    assert metrics(folder) == metrics(whole)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone") / "run"
    start(recipe(TwoCalls()), folder)
    return metrics(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "precision", "near"),
    [("ddp", "fp32", 1e-3), ("ddp", "bf16", 0.05), ("fsdp", "fp32", 1e-3)],
)
def test_a_loss_may_call_any_method_of_its_model(strategy, precision, near, alone, pairs):
    together = metrics(pairs / f"two-calls-{strategy}-{precision}")
    for one, two in zip(alone, together, strict=True):
        for name in ("train_loss", "train_length", "train_error", "val_loss"):
            assert two[name] == pytest.approx(one[name], rel=near), name
