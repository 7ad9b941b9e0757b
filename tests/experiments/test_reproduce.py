"""What is missing is run, what was stopped goes on, what fails is said."""

import json
import signal
import sys
from dataclasses import replace

import pytest

from torchcaps.cli import main
from torchcaps.errors import TorchcapsError
from torchcaps.experiments import registry
from torchcaps.experiments.reproduce import Job, missing, reproduce, run_job
from torchcaps.experiments.tables import Column, Table
from torchcaps.train.training import Training


@pytest.fixture
def paper(tiny_recipe, monkeypatch, tmp_path):
    """A paper of one table with two rows, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    one = replace(tiny_recipe, paper="little", table="table1", epochs=1)
    rows = {"little/a": replace(one, row="A"), "little/b": replace(one, row="B")}
    functions = {name: (lambda made=made: made) for name, made in rows.items()}
    monkeypatch.setattr(registry, "_RECIPES", functions)
    table = Table(
        "little", "table1", "Two rows", {"digits": Column(("digits",))}, {"A": {}, "B": {}}
    )
    module = sys.modules["torchcaps.experiments.tables"]  # the package has a function of that name
    monkeypatch.setattr(module, "_TABLES", {("little", "table1"): table})
    return tmp_path


def lines(folder):
    path = folder / "results/little.jsonl"
    return [json.loads(x) for x in path.read_text().splitlines()] if path.exists() else []


def test_only_what_is_missing_is_run(paper, capsys):
    results = paper / "results"
    assert missing("little", (), 2, results) == [
        Job("little/a", 0), Job("little/b", 0), Job("little/a", 1), Job("little/b", 1)
    ]  # fmt: skip
    assert main(["reproduce", "little", "table1", "--seeds", "1"]) == 0
    assert "A" in capsys.readouterr().out
    assert {(x["recipe"], x["seed"]) for x in lines(paper)} == {("little/a", 0), ("little/b", 0)}
    assert lines(paper)[0]["command"] == "torchcaps train little/a --seed 0 --record"
    assert missing("little", ("table1",), 1, results) == []
    before = lines(paper)
    assert main(["reproduce", "little", "--seeds", "1"]) == 0
    assert lines(paper) == before
    assert main(["reproduce", "little", "--seeds", "2", "--dry"]) == 0
    assert "torchcaps train little/a --seed 1 --record" in capsys.readouterr().out


def test_a_stopped_run_goes_on_and_a_failed_one_is_named(paper, monkeypatch, capsys):
    original = Training.step

    def stopping(self):
        original(self)
        if self.recipe.name == "little/a" and self.state.step == 5:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Training, "step", stopping)
    assert main(["reproduce", "little", "--seeds", "1"]) == 1
    captured = capsys.readouterr()
    assert "little/a seed 0" in captured.out and "1 of 2 runs failed" in captured.err
    assert {x["recipe"] for x in lines(paper)} == {"little/b"}
    monkeypatch.setattr(Training, "step", original)
    done = list(reproduce(missing("little", (), 1, paper / "results")))
    assert [d.error for d in done] == [""]
    assert {x["recipe"] for x in lines(paper)} == {"little/a", "little/b"}


def test_a_run_that_ended_without_being_recorded_is_recorded(paper):
    job = Job("little/a", 0)
    run_job(job, "", paper / "elsewhere")
    assert not lines(paper)
    assert run_job(job, "", paper / "results").error == ""
    assert lines(paper)


def test_a_table_that_no_recipe_fills(paper, monkeypatch):
    monkeypatch.setattr(registry, "_RECIPES", {})
    with pytest.raises(TorchcapsError, match="no recipe fills it"):
        missing("little", (), 1, paper / "results")


def test_the_papers_protocol_has_rows_of_its_own(paper, capsys):
    made = registry.get_recipe("little/a")
    stopped = replace(made, stop_on="test", target_accuracy=0.01)
    registry.add_recipe("little/a", "A.", made, lambda _: stopped)
    try:
        results = paper / "results"
        assert missing("little", (), 1, results, "paper") == [Job("little/a", 0, "paper")]
        assert main(["reproduce", "little", "--seeds", "1", "--protocol", "paper"]) == 0
        assert "A [paper]" in capsys.readouterr().out
        assert {x["protocol"] for x in lines(paper)} == {"paper"}
        assert len(missing("little", (), 1, results)) == 2
        with pytest.raises(TorchcapsError, match="no protocol"):
            registry.get_recipe("little/b", "paper")
    finally:
        del registry._AS_PRINTED["little/a"]


def test_rows_that_another_table_trains_are_found_by_name(paper, monkeypatch):
    module = sys.modules["torchcaps.experiments.tables"]
    other = Table("little", "two", "", {"digits": Column(("digits",))}, {"B": {}}, ("table1",))
    monkeypatch.setitem(module._TABLES, ("little", "two"), other)
    assert missing("little", ("two",), 1, paper / "results") == [Job("little/b", 0)]


def test_a_folder_with_another_recipe_is_not_taken_for_this_one(paper, monkeypatch):
    job = Job("little/a", 0)
    assert run_job(job, "", paper / "results").error == ""
    changed = replace(registry.get_recipe("little/a"), batch_size=100)
    monkeypatch.setitem(registry._RECIPES, "little/a", lambda: changed)
    done = run_job(job, "", paper / "elsewhere")
    assert "another recipe" in done.error and not (paper / "elsewhere").exists()


def test_a_measure_that_failed_is_taken_the_next_time(paper, monkeypatch):
    table = Table("little", "table1", "", {"ece": Column(("digits",), "ece")}, {"A": {}, "B": {}})
    module = sys.modules["torchcaps.experiments.tables"]
    monkeypatch.setattr(module, "_TABLES", {("little", "table1"): table})
    results = paper / "results"
    job = missing("little", (), 1, results)[0]
    assert job.measures == ("calibration",)

    def fails(*_):
        raise TorchcapsError("no extra")

    with monkeypatch.context() as patch:
        patch.setattr("torchcaps.experiments.reproduce.measure", fails)
        assert run_job(job, "", results).error == "no extra"
    assert job in missing("little", (), 1, results)
    assert run_job(job, "", results).error == ""
    assert job.recipe not in {j.recipe for j in missing("little", (), 1, results)}
    assert sum(x["metric"] == "accuracy" and x["split"] == "test" for x in lines(paper)) == 1


def test_only_rows_with_a_column_for_their_data(paper, monkeypatch):
    module = sys.modules["torchcaps.experiments.tables"]
    other = Table("little", "table1", "", {"x": Column(("mnist",))}, {"A": {}, "B": {}})
    monkeypatch.setattr(module, "_TABLES", {("little", "table1"): other})
    with pytest.raises(TorchcapsError, match="no recipe fills it"):
        missing("little", (), 1, paper / "results")
