"""What a run may go on with, and when that is written down."""

import shutil
import signal
from dataclasses import replace

import pytest
from PIL import Image

from tests.conftest import TINY_CONVNET
from tests.stopping import stopped_at, stopping_at
from torchcaps.errors import Interrupted, TorchcapsError
from torchcaps.models.registry import model_config
from torchcaps.training import loop
from torchcaps.training.evaluate import evaluate
from torchcaps.training.loop import resume, start
from torchcaps.training.recipe import DataSpec, Recipe, with_root
from torchcaps.training.run import Run
from torchcaps.training.state import Training


@pytest.fixture
def stopped(tiny_recipe, tmp_path):
    return stopped_at(3, tiny_recipe, tmp_path / "run")


def faster(run, lr=0.5):
    return replace(run.recipe(), optimizer=replace(run.recipe().optimizer, lr=lr))


def test_a_run_that_another_process_trains_is_not_changed(stopped):
    before = stopped.recipe_file.read_bytes(), stopped.start()
    with pytest.MonkeyPatch.context() as patch:  # a process may claim again what it has
        patch.setattr("torchcaps.training.loop.claimed", refused)
        with pytest.raises(TorchcapsError, match="another process"):
            resume(stopped.folder, recipe=faster(stopped))
    assert (stopped.recipe_file.read_bytes(), stopped.start()) == before


def refused(folder, *_):
    raise TorchcapsError(f"{folder}: another process is training it.")


@pytest.mark.parametrize("field", [{"lr": -1.0}, {"rates": ("nosuch=3",)}])
def test_a_change_that_cannot_be_is_not_kept(field, stopped):
    wrong = replace(stopped.recipe(), optimizer=replace(stopped.recipe().optimizer, **field))
    with pytest.raises(TorchcapsError):
        resume(stopped.folder, recipe=wrong)
    assert "modified" not in stopped.start() or not stopped.start()["modified"]
    assert resume(stopped.folder).record()["recipe"]["optimizer"]["lr"] > 0


def test_what_a_run_cannot_go_on_with_is_refused(stopped):
    for other in (replace(stopped.recipe(), seed=7), replace(stopped.recipe(), epochs=9)):
        with pytest.raises(TorchcapsError, match="resumed run keeps its"):
            resume(stopped.folder, recipe=other)
    ended = resume(stopped.folder, recipe=faster(stopped, 0.002))
    assert ended.record()["modified"] == ["optimizer.lr=0.002"]
    with pytest.raises(TorchcapsError, match="is finished"):
        resume(stopped.folder, recipe=faster(stopped, 0.003))


def test_a_run_killed_before_its_first_checkpoint_begins_anew(stopped, tiny_recipe, tmp_path):
    """Its metrics are those of one training: what the killed one wrote is cut off."""
    shutil.rmtree(stopped.checkpoints)
    stopped.log({"step": 1, "loss": 99.0})
    whole = start(tiny_recipe, tmp_path / "whole")
    again = resume(stopped.folder)
    assert again.record()["weights_sha256"] == whole.record()["weights_sha256"]
    assert [row["step"] for row in again.metrics] == [row["step"] for row in whole.metrics]


def test_what_is_this_machines_makes_no_other_recipe(stopped, tmp_path):
    here = replace(with_root(stopped.recipe(), str(tmp_path)), checkpoint_seconds=5.0)
    record = resume(stopped.folder, recipe=here).record()
    assert not record.get("modified") and record["recipe"]["data"]["root"] == str(tmp_path)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGUSR2"])
def test_a_schedulers_signal_leaves_a_checkpoint(name, tiny_recipe, tmp_path):
    """Preemption and time limits; whoever started the run learns which signal it was."""
    number = getattr(signal, name)
    with pytest.raises(Interrupted) as stopped:
        stopping_at(3, tiny_recipe, tmp_path / "run", number)
    assert stopped.value.signal == number and str(stopped.value) == str(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run/checkpoints").glob("*3")]


@pytest.mark.parametrize("validations", [0, 1])
def test_a_stop_file_ends_a_run_and_a_resume_ends_it_with_the_same_bits(
    tiny_recipe, tmp_path, monkeypatch, validations
):
    folder = tmp_path / "run"
    original, steps = Training.step, []

    def place_file(*_):
        (folder / "stop").write_text("enough")

    def step(self):
        original(self)
        steps.append(self.state.step)
        if not validations and len(steps) == 2:
            place_file()

    monkeypatch.setattr(Training, "step", step)
    monkeypatch.setattr(loop, "LOOK_SECONDS", 1e6 if validations else 0)
    with pytest.raises(Interrupted) as stopped:
        start(tiny_recipe, folder, callbacks=[place_file] if validations else [])
    assert stopped.value.signal == 0 and len(Run(folder).metrics) == validations
    assert validations or steps == [1, 2]
    record = resume(folder).record()
    assert not (folder / "stop").exists()
    whole = start(tiny_recipe, tmp_path / "whole").record()
    assert record["weights_sha256"] == whole["weights_sha256"]


def test_hup_that_nohup_ignores_stops_nothing(tiny_recipe, tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        original = Training.step

        def step(self):
            original(self)
            signal.raise_signal(signal.SIGHUP)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Training, "step", step)
            assert start(tiny_recipe, tmp_path / "run").record()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_folder_of_images_that_changed_is_told(tmp_path):
    photos = tmp_path / "photos"
    for name, level in (("cat", 50), ("dog", 200)):
        (photos / name).mkdir(parents=True)
        for number in range(10):
            Image.new("L", (28, 28), level + number).save(photos / name / f"{number}.png")
    data = DataSpec(name=f"folder:{photos},size=28,mode=L")
    recipe = Recipe(
        epochs=2, batch_size=4, data=data, model=model_config("convnet-avg-small", **TINY_CONVNET)
    )
    run = stopped_at(3, recipe, tmp_path / "run")
    (photos / "cat").rename(photos / "zcat")
    with pytest.raises(TorchcapsError, match="other files than when the run began"):
        resume(run.folder)
    (photos / "zcat").rename(photos / "cat")
    resume(run.folder)
    assert "note" not in evaluate(run.folder)
    Image.new("L", (28, 28)).save(photos / "cat" / "new.png")
    assert "other files" in evaluate(run.folder)["note"]


def test_the_seconds_before_a_resume_count(stopped, monkeypatch):
    original = Training.restore

    def after_an_hour(self):
        problems = original(self)
        self.state.seconds = 3600.0
        return problems

    monkeypatch.setattr(Training, "restore", after_an_hour)
    assert 3600 < resume(stopped.folder).record()["seconds"] < 3700
