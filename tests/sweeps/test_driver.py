"""Sweeps from the first trial to the final runs: repeatable, resumable."""

import json
import shutil
from dataclasses import replace

import optuna
import pytest
from rich.console import Console

import torchcaps
from torchcaps.errors import TorchcapsError, UsageError
from torchcaps.sweeps import Sweep
from torchcaps.sweeps.driver import line_of, open_sweep, plan, run_sweep
from torchcaps.sweeps.folder import ALL, EARLY, Trial
from torchcaps.sweeps.report import summary, write_report
from torchcaps.sweeps.trial import train_trial
from torchcaps.training import loop
from torchcaps.training.loop import resume
from torchcaps.training.recipe import to_dict
from torchcaps.training.run import Run

OVER = {"optimizer.lr": "log:1e-4..1e-1", "model.num_iters": [1, 2]}


@pytest.fixture
def short(tiny_recipe, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    data = replace(tiny_recipe.data, per_class=20, held_out=100)
    return replace(tiny_recipe, epochs=1, data=data, metrics=("accuracy:digits",))


def quiet(_):
    pass


def outcomes(sweep):
    return [(trial.values, trial.value, trial.epoch, trial.state) for trial in sweep.trials]


def swept(recipe, **options):
    options = {"seeds": 0, "quiet": True, "trials": 3, **options}
    return torchcaps.sweep(recipe, OVER, **options)


def test_a_sweep_again_in_another_folder_has_the_same_trials(short):
    first = swept(short, out="one")
    assert outcomes(first) == outcomes(swept(short, out="two"))
    assert outcomes(first) != outcomes(swept(replace(short, seed=1), out="three"))
    assert [trial.state for trial in first.trials] == ["finished"] * 3
    values = [trial.value for trial in first.trials]
    assert first.best.value == max(values) and first.best.recipe.optimizer.lr


def test_trials_do_not_look_at_the_test_split_and_the_final_runs_do(short):
    sweep = swept(replace(short, paper="", row="x"), seeds=2, trials=2)
    for trial in sweep.trials:
        assert {r["split"] for r in trial.run.results} == {"val"}
        assert trial.recipe.skip_test and not trial.recipe.metrics
    assert [run.recipe().seed for run in sweep.final] == [1, 2]
    for run in sweep.final:
        assert {r["split"] for r in run.results} >= {"test"} and not run.recipe().skip_test
        assert run.recipe().optimizer.lr == sweep.best.values["optimizer.lr"]
    again = torchcaps.sweep(replace(short, row="x"), OVER, seeds=2, trials=2, quiet=True)
    assert again.folder == sweep.folder and outcomes(again) == outcomes(sweep)


def test_a_killed_sweep_resumes_to_the_same_trials(short):
    whole = swept(short, out="whole", search="tpe", trials=4)
    sweep = open_sweep(plan(short, OVER, trials=4, search="tpe", seeds=0), None)
    killed = Sweep.open(sweep.folder)

    class Killed(Exception):
        pass

    def kill_at(text):
        if text.startswith("t0001"):
            raise Killed

    with pytest.raises(Killed):
        run_sweep(killed, report=kill_at)
    trial = Trial.read(killed.trial_folder(1))
    replace(trial, state="running", value=None, epoch=None).write()  # killed before it was told
    shutil.rmtree(trial.folder)
    assert outcomes(run_sweep(Sweep.open(sweep.folder), report=quiet)) == outcomes(whole)
    assert (sweep.folder / "study.journal").exists()
    journal = optuna.storages.journal.JournalFileBackend(str(sweep.folder / "study.journal"))
    study = optuna.load_study(
        storage=optuna.storages.JournalStorage(journal), study_name=sweep.folder.name
    )
    assert [t.value for t in study.trials] == [t.value for t in whole.trials]


def test_another_space_is_another_sweep(short):
    first = swept(short, trials=1)
    other = {"optimizer.lr": [1e-3]}
    with pytest.raises(UsageError, match="another space"):
        torchcaps.sweep(short, other, out=first.folder, quiet=True)
    second = torchcaps.sweep(short, other, seeds=0, quiet=True)
    assert second.folder.name == f"{first.folder.name}-2" and second.settings.search == "grid"
    longer = swept(short, trials=2)
    assert longer.folder == first.folder and len(longer.trials) == 2


def test_failed_trials_are_shown_and_leave_the_others(short, capsys):
    over = {"data.per_class": [20, 10**8]}
    sweep = torchcaps.sweep(short, over, seeds=0, quiet=True)
    good, bad = sweep.trials
    assert good.state == "finished" and bad.state == "failed" and bad.error
    assert sweep.best == good and bad.error in line_of(bad, "val_accuracy")
    assert summary(sweep)["trials_by_number"][1]["error"] == bad.error
    over = {"data.per_class": [10**8, 10**8 + 1, 10**8 + 2, 20]}
    with pytest.raises(TorchcapsError, match="first 3 trials failed alike"):
        torchcaps.sweep(short, over, out="bad", seeds=0, quiet=True)


def test_a_trial_stopped_early_can_be_resumed_to_its_end(short):
    recipe = replace(short, epochs=3)
    settings = plan(recipe, {"optimizer.lr": [1e-3]}, seeds=0)
    whole = run_sweep(open_sweep(settings, None), report=quiet).trials[0]
    folder = whole.folder.parent.with_name("early") / "t0000"

    sweep = open_sweep(settings, folder.parent)
    trial = Trial(folder, 0, {"optimizer.lr": 1e-3})
    trial.write()
    original = loop._validate

    def validate(*arguments):
        line = original(*arguments)
        (folder / "stop").write_text(EARLY)
        return line

    arguments = {"recipe": to_dict(sweep.trial_recipe(trial.values)), "folder": str(folder)}
    arguments |= {"in_turn": False, "console": Console(quiet=True)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "_validate", validate)
        train_trial(**arguments)
    stopped = Trial.read(folder)
    assert stopped.state == "stopped early" and stopped.epoch == 1 and stopped.value is not None
    train_trial(**arguments)  # given out a second time
    assert Trial.read(folder) == stopped and not Run(folder).finished
    assert resume(folder).record()["weights_sha256"] == whole.run.record()["weights_sha256"]


def test_a_sweep_that_was_stopped_is_resumed(short):
    recipe = replace(short, epochs=2)
    sweep = open_sweep(plan(recipe, OVER, trials=2, seeds=1), None)

    def stop(text):
        sweep.stop_file.write_text(ALL)

    run_sweep(sweep, report=stop)
    assert [trial.state for trial in sweep.trials] == ["finished"] and not sweep.final
    run_sweep(sweep, report=quiet)
    assert [trial.state for trial in sweep.trials] == ["finished"] * 2 and len(sweep.final) == 1
    assert not sweep.stop_file.exists()


def test_hours_end_a_sweep(short):
    sweep = swept(short, hours=1e-6, trials=5)
    assert len(sweep.trials) == 1 and sweep.best is not None


def test_summary_and_report(short):
    sweep = swept(short, trials=4, seeds=1)
    found = json.loads(json.dumps(summary(sweep)))
    assert found["objective"] == "val_accuracy" and len(found["trials_by_number"]) == 4
    assert found["best"]["value"] == sweep.best.value and found["final"]["accuracy digits"]["runs"]
    page = write_report(sweep, sweep.folder / "report.html").read_text()
    for text in ("Parallel coordinates", "Learning curves", "optimizer.lr", "t0003", "drawings"):
        assert text in page
    assert "http://" not in page.replace("http://www.w3.org", "")


@pytest.mark.parametrize("options, said", [
    ({"search": "grid"}, "needs lists"), ({"search": "best"}, "not one of grid"),
    ({"trials": -1}, "not negative"),
])  # fmt: skip
def test_wrong_options(short, options, said):
    with pytest.raises(UsageError, match=said):
        plan(short, OVER, **options)
    with pytest.raises(UsageError, match="has 2 trials"):
        plan(short, {"epochs": [1, 2]}, trials=3, search="grid")
