"""A run that was stopped, damaged, moved or lied to: the same bits, or a sentence."""

import json
import math
import os
import random
import shutil
import signal
import subprocess
from dataclasses import replace

import pytest
import torch

import torchcaps
from tests.conftest import TINY_CAPSNET, TINY_CONVNET
from tests.stopping import stopped_at
from torchcaps.cli import main
from torchcaps.errors import TorchcapsError
from torchcaps.models.registry import model_config
from torchcaps.training import checkpoint
from torchcaps.training.loop import resume, start
from torchcaps.training.recipe import DataSpec, Recipe, overlaid
from torchcaps.training.run import Run
from torchcaps.training.state import Training
from torchcaps.training.tasks import Classify

MUTATIONS = int(os.environ.get("TORCHCAPS_ATTACK", "12"))
"""Damaged runs that are tried; more of them on demand."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    config = model_config("capsnet", **TINY_CAPSNET)
    data = DataSpec(name="digits", per_class=100)
    recipe = Recipe(name="tiny", epochs=2, batch_size=50, data=data, model=config)
    return start(recipe, tmp_path_factory.mktemp("whole") / "run")


def weights(run):
    return (run.model_folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_what_schedulers_send_leaves_a_run_that_goes_on(number, whole, tmp_path):
    stopped = stopped_at(13, whole.recipe(), tmp_path / "run", number)
    assert checkpoint.load(checkpoint.numbered(stopped.checkpoints)[0])[0].step == 13
    assert weights(resume(stopped.folder)) == weights(whole)


@pytest.fixture(scope="module")
def stopped(whole, tmp_path_factory):
    """A run that stands at step 25 of 40, with a line of metrics."""
    return stopped_at(25, whole.recipe(), tmp_path_factory.mktemp("stopped") / "run").folder


def outcome(folder):
    """What a resume gives: the weights and results, or what it says."""
    try:
        run = resume(folder)
        return weights(run), [r["value"] for r in run.record()["results"]]
    except TorchcapsError as error:
        assert str(error)
        return str(error)


def test_no_byte_of_a_run_changes_its_result_unseen(whole, stopped, tmp_path, capsys):
    """Flipped, cut and added bytes in every file that a resume reads."""
    good = weights(whole), [r["value"] for r in whole.record()["results"]]
    files = [p.relative_to(stopped) for p in stopped.rglob("*") if p.is_file()]
    chance = random.Random(0)
    for count in range(MUTATIONS):
        folder = tmp_path / "run"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(stopped, folder)
        path = folder / chance.choice(files)
        content = bytearray(path.read_bytes())
        kind = count % 3
        if kind == 0 and content:
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        elif kind == 1:
            content = content[: chance.randrange(len(content) + 1)]
        else:
            content[chance.randrange(len(content) + 1) :] = b"x"
        path.write_bytes(content)
        found = outcome(folder)
        assert isinstance(found, str) or found == good, path


def test_a_recipe_that_was_changed_is_noticed(stopped, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    path = folder / "recipe.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "epochs": values["epochs"] + 1}))
    with pytest.raises(TorchcapsError, match="changed since the run wrote it"):
        resume(folder)
    changed = overlaid(Recipe(), path)
    assert changed.epochs == values["epochs"] + 1  # a file of fields may be edited


@pytest.mark.parametrize("field, value", [("step", 10), ("step", 10**12), ("finished", True),
                                          ("metrics_bytes", 10), ("seconds", -5.0)])  # fmt: skip
def test_a_state_that_was_changed_is_noticed(field, value, stopped, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    for path in checkpoint.numbered(folder / "checkpoints"):
        state = json.loads((path / "state.json").read_text())
        (path / "state.json").write_text(json.dumps({**state, field: value}))
    with pytest.raises(TorchcapsError, match="no valid checkpoint"):
        resume(folder)


def test_metrics_that_were_cut_are_told(stopped, whole, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    (folder / "metrics.jsonl").write_text("")
    assert main(["resume", str(folder)]) == 0
    assert "was changed since this run wrote it" in " ".join(capsys.readouterr().out.split())
    assert weights(Run(folder)) == weights(whole)


def test_finished_weights_are_checked(whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole.folder, folder)
    path = folder / "model" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-7] ^= 4
    path.write_bytes(content)
    with pytest.raises(TorchcapsError, match="sha256 is not that"):
        torchcaps.load(folder)


@pytest.mark.parametrize("text", ["[]", "null", "{}", "", "{", "[" * 100_000])
def test_records_and_starts_that_are_none(text, whole, stopped, tmp_path, capsys):
    done, folder = tmp_path / "done", tmp_path / "run"
    shutil.copytree(whole.folder, done)
    (done / "record.json").write_text(text)
    for words in (["eval"], ["paper", "record"], ["report"], ["predict"]):
        more = ["x.png"] if words == ["predict"] else []
        (tmp_path / "x.png").write_bytes(b"")
        assert main([*words, str(done), *more]) in (1, 2)
        assert len(capsys.readouterr().err.splitlines()) == 1
    shutil.copytree(stopped, folder)
    (folder / "start.json").write_text(text)
    if text != "{}":
        assert main(["resume", str(folder)]) == 1
        assert "start.json" in capsys.readouterr().err


def test_leftovers_of_a_kill_are_cleaned(stopped, whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    last, first = checkpoint.numbered(folder / "checkpoints")
    shutil.copytree(first, last.with_name(f"{first.name}.old"))
    (folder / "checkpoints" / "00000077.tmp").mkdir()
    os.replace(last, last.with_name(f"{last.name}.old"))  # killed between two renames
    assert weights(resume(folder)) == weights(whole)
    assert not [p for p in (folder / "checkpoints").iterdir() if not p.name.isdigit()]


def test_a_folder_that_is_deleted_ends_the_run(tmp_path, tiny_recipe, monkeypatch):
    original = Training.step

    def deleting(self):
        original(self)
        if self.state.step == 5:
            shutil.rmtree(tmp_path / "run")

    monkeypatch.setattr(Training, "step", deleting)
    with pytest.raises(TorchcapsError, match="deleted or moved|cannot be written"):
        start(tiny_recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_nothing_is_written_outside(tmp_path, monkeypatch, tiny_recipe, whole, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TorchcapsError, match="letters, digits"):
        start(replace(tiny_recipe, protocol="../../../escaped"))
    with pytest.raises(TorchcapsError, match="not empty"):
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "00000001").write_text("a file of somebody's")
        start(tiny_recipe, tmp_path / "mine")
    folder = tmp_path / "run"
    shutil.copytree(whole.folder, folder)
    record = json.loads((folder / "record.json").read_text())
    record["recipe"]["paper"] = "/x/ABS"
    (folder / "record.json").write_text(json.dumps(record))
    assert main(["paper", "record", str(folder)]) == 1
    assert "not a paper's short name" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", "run"]


def test_a_read_only_disk_is_told(small_disk, whole, stopped, tmp_path, capsys):
    done, folder = small_disk / "done", small_disk / "stopped"
    for source, to in ((whole.folder, done), (stopped, folder)):
        shutil.copytree(source, to, ignore=shutil.ignore_patterns("00000000", "*.png"))
    (tmp_path / "x.png").write_bytes(b"")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for words in (
        ["report", str(done)],
        ["paper", "record", str(done), "--results", str(small_disk / "results")],
        ["resume", str(folder)],
        ["eval", str(done), "--metrics", "knn,limit=50", "--record"],
        ["train", "demo/convnet-avg", "--out", str(small_disk / "new")],
    ):
        assert main(words) == 1, words
        said = capsys.readouterr().err.strip().splitlines()
        assert "Error" not in said[-1] and "ead-only" in said[-1], said


def test_after_a_loss_that_is_not_finite_the_run_goes_on(tiny_recipe, tmp_path, monkeypatch):
    """The checkpoint of the update that broke it goes; a smaller rate is taken and recorded."""
    recipe = replace(
        tiny_recipe,
        model=model_config("convnet-avg", **TINY_CONVNET),
        task=Classify(loss="cross_entropy"),
        checkpoint_seconds=0.01,
    )
    original = Training.step

    def breaking(self):
        original(self)
        if self.state.step == 12:  # all weights are finite still, and the next loss is not
            with torch.no_grad():
                for parameter in self.context.task.parameters():
                    parameter.mul_(1e30)

    monkeypatch.setattr(Training, "step", breaking)
    with pytest.raises(TorchcapsError, match="at step 12.*\n.*--optimizer.lr 0.0001"):
        start(recipe, tmp_path / "run")
    monkeypatch.setattr(Training, "step", original)
    kept = [int(p.name) for p in checkpoint.numbered(tmp_path / "run" / "checkpoints")]
    assert kept and max(kept) < 12
    assert main(["resume", str(tmp_path / "run"), "--optimizer.lr", "0.0001"]) == 0
    record = Run(tmp_path / "run").record()
    assert record["recipe"]["optimizer"]["lr"] == 0.0001
    assert record["modified"] == ["optimizer.lr=0.0001"]
    assert all(math.isfinite(r["value"]) for r in record["results"])


def test_a_run_does_not_go_on_as_another(stopped, tmp_path, capsys):
    shutil.copytree(stopped, tmp_path / "run")
    assert main(["resume", str(tmp_path / "run"), "--batch-size", "7"]) == 1
    assert "keeps its batch_size. To change that, train a new run" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    ["--optimizer.clip -1", "--checkpoint-seconds nan", "--optimizer.lr nan", "--optimizer.lr -1",
     "--optimizer.ema 2", "--epochs 0", "--seed -1", "--batch-size 0", "--schedule.warmup 3",
     "--optimizer.momentum inf", "--data.per-class -3", "--schedule.period 0"],
)  # fmt: skip
def test_numbers_that_no_recipe_has(words, capsys, tmp_path):
    out = ["--out", str(tmp_path / "run")]
    assert main(["train", "demo/convnet-avg", *words.split(), *out]) in (1, 2)
    assert len(capsys.readouterr().err.splitlines()) <= 2
    assert not (tmp_path / "run").exists()


def test_no_byte_of_how_a_run_began_changes_unseen(stopped, tmp_path):
    """Every byte of start.json in turn: another name of a field is as bad as another value."""
    begun = Run(stopped).start()
    content = (stopped / "start.json").read_bytes()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 4
        (tmp_path / "start.json").write_bytes(damaged)
        try:
            found = Run(tmp_path).start()
        except TorchcapsError as error:
            assert "start.json" in str(error)
            continue
        found = {k: v for k, v in found.items() if k in begun}  # the sum under another name
        assert found == begun, place
