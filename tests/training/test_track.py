"""Trackers: the lines of metrics.jsonl, one run after a resume, and failures that end nothing."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.stopping import stopped_at
from torchcaps.errors import TorchcapsError
from torchcaps.training import track
from torchcaps.training.loop import resume, start


class FakeWandB:
    """What `wandb.init` takes and returns."""

    def __init__(self):
        self.begun, self.lines, self.finished, self.fails_at = [], [], 0, None
        self.Settings = lambda **options: options

    def init(self, **options):
        self.begun.append(options)
        return SimpleNamespace(log=self._log, finish=self._finish)

    def _log(self, values, step):
        if step == self.fails_at:
            raise ConnectionError("no network\nwith details")
        self.lines.append((step, values))

    def _finish(self):
        self.finished += 1


@pytest.fixture
def wandb(monkeypatch):
    fake = FakeWandB()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


@pytest.fixture
def tracked(tiny_recipe):
    return replace(tiny_recipe, track=("wandb",), epochs=3)


def test_a_tracker_gets_the_lines_and_a_resumed_run_continues_its_run(tracked, tmp_path, wandb):
    run = stopped_at(30, tracked, tmp_path / "run")  # in the second epoch
    resume(run.folder)
    assert [b["id"] for b in wandb.begun] == [run.start()["run"]] * 2
    assert all(b["resume"] == "allow" for b in wandb.begun) and wandb.finished == 2
    assert [step for step, _ in wandb.lines] == [line["step"] for line in run.metrics]
    for (_, values), line in zip(wandb.lines, run.metrics, strict=True):
        assert values["train_loss"] == line["train_loss"] and "step" not in values
    other = replace(run.recipe(), track=())
    assert resume(run.folder, recipe=replace(other)).record()["recipe"]["track"] == ["wandb"]


def test_a_failing_tracker_ends_no_run(tracked, tmp_path, wandb, capsys):
    wandb.fails_at = 40
    run = start(tracked, tmp_path / "run")
    assert run.finished and len(run.metrics) == 3 and len(wandb.lines) == 1
    error = capsys.readouterr().err
    assert error.count("tracker wandb failed") == 1 and "(no network)" in error


def test_a_missing_extra_is_an_error_before_the_training(tracked, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(TorchcapsError, match=r"torchcaps\[wandb\]"):
        start(tracked, tmp_path / "run")
    assert not (tmp_path / "run/metrics.jsonl").exists()


def test_tensorboard_has_each_step_once_after_a_resume(tiny_recipe, tmp_path):
    run = stopped_at(30, replace(tiny_recipe, track=("tensorboard",), epochs=3), tmp_path / "run")
    resume(run.folder)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.folder / "tensorboard"))
    events.Reload()
    steps = [event.step for event in events.Scalars("train_loss")]
    assert steps == [line["step"] for line in run.metrics]


class FakeMLflow:
    """The client of MLflow with its runs in a dict."""

    def __init__(self):
        self.runs, self.metrics = {}, {}

    def set_experiment(self, name):
        self.experiment = name

    def MlflowClient(self):
        return self

    def get_experiment_by_name(self, name):
        return SimpleNamespace(experiment_id="1")

    def search_runs(self, experiments, query):
        ids = [i for i, tags in self.runs.items() if f"'{tags['torchcaps']}'" in query]
        return [SimpleNamespace(info=SimpleNamespace(run_id=i)) for i in ids]

    def create_run(self, experiment, tags, run_name):
        self.runs[run_name] = tags
        return SimpleNamespace(info=SimpleNamespace(run_id=run_name))

    def log_param(self, run, name, value):
        assert len(value) <= 500

    def log_metric(self, run, name, value, step):
        self.metrics.setdefault((run, name), []).append(SimpleNamespace(step=step, value=value))

    def get_metric_history(self, run, name):
        return self.metrics.get((run, name), [])

    def update_run(self, run, status):
        pass

    def set_terminated(self, run):
        pass


def test_mlflow_gets_the_lines_that_it_has_missed(tiny_recipe, tmp_path, monkeypatch):
    fake = FakeMLflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    run = stopped_at(30, replace(tiny_recipe, epochs=3), tmp_path / "run")
    tracked = replace(run.recipe(), track=("mlflow",))
    resume(run.folder, recipe=tracked)
    assert len(fake.runs) == 1
    (history,) = [v for (_, name), v in fake.metrics.items() if name == "train_loss"]
    assert [m.value for m in history] == [line["train_loss"] for line in run.metrics]
    again = track.MLflow(run, tracked)  # the same run, and nothing is missing
    assert again.last == run.metrics[-1]["step"] and len(fake.runs) == 1


def test_patience_counts_validations_without_a_better_one(tiny_recipe, tmp_path, monkeypatch):
    values = iter([0.1, 0.3, 0.3, 0.2, 0.9, 0.9])
    recipe = replace(tiny_recipe, epochs=6, patience=2)
    from torchcaps.training.task import task_class

    kind = task_class(recipe.task)
    original = kind.evaluate

    def evaluate(self, split, *rest):
        numbers = original(self, split, *rest)
        return {**numbers, "accuracy": next(values, 0.5)}

    monkeypatch.setattr(kind, "evaluate", evaluate)
    run = start(recipe, tmp_path / "run")
    assert len(run.metrics) == 4 and run.record()["chosen_epoch"] == 2  # the later of equal ones
    with pytest.raises(TorchcapsError, match="patience waits"):
        start(replace(recipe, choose="last"), tmp_path / "last")
