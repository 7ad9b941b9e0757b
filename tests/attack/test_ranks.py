"""Processes that train together: one curve whatever their number, and one end for all."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.attack import ATTACK, driven
from tests.training.test_processes import TINY

SECONDS = 10
"""The longest that a process may outlive another one of its run."""


def test_one_two_and_four_processes_have_one_curve(tmp_path):
    one, two, four = driven("ranks", "curves", tmp_path).values()
    assert len(one) == 3
    for others in (two, four):
        for line, other in zip(one, others, strict=True):
            assert other.keys() == line.keys()
            for name in line:
                assert other[name] == pytest.approx(line[name], rel=1e-5), name


def test_a_killed_process_ends_the_others_with_a_sentence(tmp_path):
    """The first one, which writes, and another one."""
    for found in driven("ranks", "killed", tmp_path):
        assert found["code"] == 1 and found["seconds"] < SECONDS
        assert "another of its 2 processes ended" in found["words"]
        assert "Traceback" not in found["words"] and "Error" not in found["words"]


def children(pid: int) -> list[int]:
    return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def ended(process: subprocess.Popen) -> None:
    """It ends well, and in time; torchrun passes a TERM on to what it has started."""
    try:
        said = process.communicate(timeout=120)[0]
    except subprocess.TimeoutExpired:
        process.terminate()
        said = process.communicate()[0]
    assert process.returncode == 0, said


@pytest.mark.slow
@pytest.mark.skipif(not ATTACK, reason="twenty seconds; set TORCHCAPS_ATTACK")
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc to find processes")
def test_torchrun_starts_a_killed_process_again(tmp_path):
    """With --max-restarts the same command goes on with its run, and ends as one never killed."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=2",
                "--nproc-per-node=2", "-m", "torchcaps.cli"]  # fmt: skip
    pair = [*TINY, "--hardware.devices", "2", "--hardware.strategy", "ddp"]
    pair += ["--checkpoint-seconds", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def launched(name: str) -> subprocess.Popen:
        words = [*launcher, *pair, "--out", str(tmp_path / name)]
        return subprocess.Popen(
            words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    process = launched("killed")
    while not (tmp_path / "killed/metrics.jsonl").exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
    os.kill(children(process.pid)[1], signal.SIGKILL)
    ended(process)
    assert (tmp_path / "killed/record.json").exists()
    ended(launched("whole"))
    curves = [
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("whole", "killed")
    ]
    assert len(curves[0]) == 3
    for line, other in zip(*curves, strict=True):
        assert other == pytest.approx(line, rel=1e-6)


def test_restarts_need_a_place(monkeypatch, capsys):
    from torchcaps.cli import main

    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    assert main(TINY) == 2
    assert "--out" in capsys.readouterr().err
