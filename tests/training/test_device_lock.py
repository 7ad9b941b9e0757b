"""Runs that share a device: one takes steps, the others wait, and waiting is no time of a run."""

import os
import signal
import threading
import time
from dataclasses import replace

import pytest
import torch
from filelock import FileLock

import torchcaps
from torchcaps.errors import Interrupted, TorchcapsError
from torchcaps.escape import Console
from torchcaps.papers import reproduce
from torchcaps.training.device_lock import DeviceLock, lock_of
from torchcaps.training.loop import WARMUP_STEPS, resume
from torchcaps.training.recipe import HardwareSpec, to_dict
from torchcaps.training.registry import get_recipe
from torchcaps.training.run import Run

CPU = torch.device("cpu")


@pytest.fixture
def held(tmp_path, monkeypatch):
    """The turn, which another run has, on a device of this test's own."""
    monkeypatch.setattr("torchcaps.training.device_lock.lock_of", lambda device: tmp_path / "turn")
    with FileLock(tmp_path / "turn", thread_local=False) as lock:
        yield lock


def taking_turns(recipe):
    return replace(recipe, hardware=replace(recipe.hardware, in_turn=True))


def soon(folder, act):
    """Do this two seconds after a run has begun, by which it has taken all the steps it may."""

    def wait():
        while not Run(folder).recipe_file.exists():
            time.sleep(0.02)
        time.sleep(2)
        act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def test_a_run_waits_until_another_has_taken_its_steps(tiny_recipe, held, tmp_path):
    seen = []

    def let_go():
        seen.append(Run(tmp_path / "run").metrics_file.exists())
        held.release()

    thread = soon(tmp_path / "run", let_go)
    began = time.monotonic()
    run = torchcaps.fit(taking_turns(tiny_recipe), out=tmp_path / "run", quiet=True)
    thread.join()
    assert seen == [False], "it ended an epoch while another had the turn"
    assert len(run.metrics) == 2 and run.record()["steps_trained"] > 2 * WARMUP_STEPS
    assert run.record()["seconds"] < time.monotonic() - began - 1, "waiting was counted"
    assert not FileLock(tmp_path / "turn").is_locked


def test_a_run_that_is_not_asked_to_never_waits(tiny_recipe, held, tmp_path):
    run = torchcaps.fit(replace(tiny_recipe, epochs=1), out=tmp_path / "run", quiet=True)
    assert run.record()["epochs_trained"] == 1


def test_ctrl_c_ends_the_waiting_and_the_run_goes_on_later(tiny_recipe, held, tmp_path):
    soon(tmp_path / "run", lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(Interrupted):
        torchcaps.fit(taking_turns(tiny_recipe), out=tmp_path / "run", quiet=True)
    held.release()
    assert len(resume(tmp_path / "run").metrics) == 2


def test_a_run_begun_without_can_go_on_in_turn(tiny_recipe, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "torchcaps.training.loop._continue", lambda run, recipe, *more: seen.append(recipe)
    )
    Run.create(tiny_recipe, tmp_path / "run")
    for in_turn in (False, True):
        resume(tmp_path / "run", in_turn=in_turn)
        assert seen[-1].hardware.in_turn == in_turn


def test_a_run_without_a_step_left_waits_for_nobody(tiny_recipe, held, tmp_path):
    run = torchcaps.fit(
        replace(taking_turns(tiny_recipe), steps=WARMUP_STEPS), out=tmp_path / "run", quiet=True
    )
    assert run.record()["steps_trained"] == WARMUP_STEPS


def test_a_lock_that_cannot_be_made_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("torchcaps.training.device_lock.lock_of", lambda device: tmp_path)
    with (
        DeviceLock(CPU, asked=True) as turn,
        pytest.raises(TorchcapsError, match="cannot be locked"),
    ):
        turn.wait(threading.Event(), print)


def test_the_turn_ends_with_the_block(held):
    held.release()
    with DeviceLock(CPU, asked=True) as turn:
        assert turn.wait(threading.Event(), print) < 1
        assert turn.lock is not None and turn.lock.is_locked
    assert not turn.lock.is_locked


def test_who_waited_longest_comes_first(held, tmp_path):
    (tmp_path / "turn.1.0").touch()  # of one that died
    came, waiting = [], []

    def wait(name):
        with DeviceLock(CPU, asked=True) as turn:
            turn.wait(threading.Event(), lambda _: waiting.append(name))
            came.append(name)

    threads = []
    for name in range(4):
        threads.append(threading.Thread(target=wait, args=(name,)))
        threads[-1].start()
        while len(waiting) <= name:
            time.sleep(0.01)
    held.release()
    for thread in threads:
        thread.join()
    assert came == [0, 1, 2, 3]
    assert not list(tmp_path.glob("turn.*"))


def test_every_device_has_a_turn_of_its_own():
    assert lock_of(CPU) == lock_of(CPU) and "cpu" in lock_of(CPU).name


def test_several_processes_of_one_run_take_no_turns(tiny_recipe, tmp_path):
    hardware = HardwareSpec(accelerator="cpu", devices=2, strategy="ddp", in_turn=True)
    with pytest.raises(TorchcapsError, match="one process"):
        torchcaps.fit(replace(tiny_recipe, hardware=hardware), out=tmp_path / "run", quiet=True)


@pytest.mark.parametrize(("beside", "gpu"), [(True, True), (True, False), (False, True)])
def test_reproduce_takes_turns_where_runs_share_a_gpu(beside, gpu, tmp_path, monkeypatch):
    given, fresh = [], []

    def start(recipe, *_):
        given.append(recipe.hardware.in_turn)
        raise TorchcapsError("seen")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torchcaps.training.loop.start", start)
    monkeypatch.setattr(reproduce, "pretrained", lambda recipe, *_: recipe)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.compiler, "reset", lambda: fresh.append(True))
    with pytest.raises(TorchcapsError, match="seen"):
        reproduce.train_and_record(
            recipe=to_dict(get_recipe("demo/capsnet")), folder="run", command="", metrics=[],
            results="results", in_turn=beside, console=Console(),
        )  # fmt: skip
    assert given == [beside and gpu]
    assert bool(fresh) == gpu, "a process of many runs stops compiling"
