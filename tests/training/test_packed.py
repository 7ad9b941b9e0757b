"""Runs on images on disk: the same bits as in memory, after a kill, and on two processes."""

import json
import signal
import socket
import sys
import time
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from tests.conftest import TINY_CONVNET
from tests.data.test_pack import photographs
from tests.stopping import stopped_at
from tests.training.test_processes import equal_runs, finished, torchcaps
from torchcaps.cli import main
from torchcaps.data.sets.packed import pack_source
from torchcaps.errors import TorchcapsError
from torchcaps.models.registry import model_config
from torchcaps.training.loop import resume, start
from torchcaps.training.recipe import DataSpec, Recipe


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    photographs(root / "in", count=30)
    pack_source(f"{root}/in,size=28,mode=L,coding=raw", root / "out")
    return root / "out"


def recipe(pack, place="false", **fields):
    name = f"packed:{pack},in_memory={place}"
    return Recipe(
        epochs=2, batch_size=8, data=DataSpec(name=name, augment=("translate:2",)),
        model=model_config("convnet-avg-small", **TINY_CONVNET), **fields,
    )  # fmt: skip


def weights(run):
    return load_file(run.model_folder / "model.safetensors")


def test_a_run_on_disk_is_that_in_memory_and_says_which(pack, tmp_path, capsys):
    runs = [
        start(recipe(pack, place), tmp_path / place, Console(width=200))
        for place in ("true", "false")
    ]
    assert runs[0].metrics == runs[1].metrics
    assert all(torch.equal(a, weights(runs[1])[n]) for n, a in weights(runs[0]).items())
    printed = capsys.readouterr().out
    assert "60 images of 28x28, 4.7e-05 GB: in memory." in printed
    assert "60 images of 28x28, 4.7e-05 GB: on disk" in printed


def test_a_run_stopped_in_mid_epoch_resumes_with_other_threads_to_the_same_bits(pack, tmp_path):
    whole = start(recipe(pack), tmp_path / "whole")
    stopped = stopped_at(3, recipe(pack), tmp_path / "stopped")
    here = stopped.recipe()
    more = replace(here, hardware=replace(here.hardware, decode_threads=5))
    equal_runs(whole.folder, resume(stopped.folder, recipe=more).folder)
    assert not stopped.record().get("modified")


def test_a_shard_that_was_damaged_since_ends_the_run_with_its_name(pack, tmp_path):
    run = stopped_at(3, recipe(pack), tmp_path / "run")
    shard = pack / "all-00000.arrow"
    whole = shard.read_bytes()
    try:
        shard.unlink()  # not in place: the file is memory-mapped
        shard.write_bytes(whole[:5000] + bytes(30_000) + whole[35_000:])
        with pytest.raises(TorchcapsError, match=r"all-00000\.arrow is damaged"):
            resume(run.folder)
    finally:
        shard.unlink()
        shard.write_bytes(whole)
    assert resume(run.folder).finished


WORDS = ["--epochs", "12", "--batch-size", "8", "--data.augment", "translate:2", "--metrics",
         "--hardware.accelerator", "cpu", "--hardware.precision", "fp32"]  # fmt: skip


@pytest.mark.slow
def test_a_killed_run_on_disk_ends_with_the_same_bits(pack, tmp_path):
    words = ["train", "convnet-avg-small", "--data", f"packed:{pack},in_memory=false", *WORDS]
    assert main([*words, "--out", str(tmp_path / "whole")]) == 0
    process = torchcaps(*words, "--checkpoint-seconds", "0", "--out", tmp_path / "killed")
    saved = tmp_path / "killed/checkpoints"
    while not any(p.name.isdigit() and int(p.name) % 6 == 3 for p in saved.glob("0*")):
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "killed/record.json").exists()
    assert (
        main(
            [
                "resume",
                str(tmp_path / "killed"),
                "--hardware.decode-threads",
                "3",
                "--checkpoint-seconds",
                "60",
            ]
        )
        == 0
    )
    equal_runs(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.slow
def test_two_processes_read_what_one_reads(pack, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launcher = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
    launcher += ("--master-port", str(port))
    words = ["train", "convnet-avg-small", "--data", f"packed:{pack},in_memory=false", *WORDS]
    words += ["--epochs", "3", "--optimizer.kind", "sgd", "--optimizer.lr", "0.01"]
    pair = ("--hardware.devices", "2", "--hardware.strategy", "ddp")
    finished(torchcaps(*words, *pair, "--out", tmp_path / "two", launcher=launcher))
    assert main([*words, "--out", str(tmp_path / "one")]) == 0
    one, two = (load_file(tmp_path / n / "model/model.safetensors") for n in ("one", "two"))
    assert max(float((one[n] - two[n]).abs().max()) for n in one) < 1e-5
    curves = [
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    ]
    for a, b in zip(*curves, strict=True):
        assert b["train_loss"] == pytest.approx(a["train_loss"], rel=1e-4)
