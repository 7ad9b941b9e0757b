"""What is missing is run, what was stopped goes on, what fails is said."""

import json
import re
import shutil
import signal
from dataclasses import replace

import pytest

from torchcaps.cli import main
from torchcaps.errors import TorchcapsError
from torchcaps.papers.reproduce import Job, missing, reproduce
from torchcaps.papers.tables import Column, Table
from torchcaps.training.registry import get_recipe
from torchcaps.training.state import Training


def run_job(job, data_root, results):
    (done,) = reproduce([job], data_root=data_root, results=results)
    return done


@pytest.fixture
def paper(tiny_recipe, registered, monkeypatch, tmp_path):
    """A paper of one table with two rows, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    for row in "AB":
        made = replace(tiny_recipe, paper="little", table="table1", row=row, epochs=1)
        registered.recipe(f"little/{row.lower()}", made)
    registered.table(table())
    return tmp_path


def table(*, name="table1", rows="AB", **columns):
    found = columns or {"digits": Column(("digits",))}
    sources = () if name == "table1" else ("table1",)
    return Table("little", name, "Two rows", found, {row: {} for row in rows}, sources)


def lines(folder):
    path = folder / "results/little.jsonl"
    return [json.loads(x) for x in path.read_text().splitlines()] if path.exists() else []


def test_only_what_is_missing_is_run(paper, registered, capsys):
    results = paper / "results"
    assert missing("little", (), 2, results) == [
        Job("little/a", 0), Job("little/b", 0), Job("little/a", 1), Job("little/b", 1)
    ]  # fmt: skip
    assert main(["paper", "run", "little", "table1", "--seeds", "1"]) == 0
    assert "A" in capsys.readouterr().out
    assert {(x["recipe"], x["seed"]) for x in lines(paper)} == {("little/a", 0), ("little/b", 0)}
    assert lines(paper)[0]["command"] == "torchcaps train little/a --seed 0 --record"
    assert missing("little", ("table1",), 1, results) == []
    before = lines(paper)
    assert main(["paper", "run", "little", "--seeds", "1"]) == 0
    assert lines(paper) == before
    assert main(["paper", "run", "little", "--seeds", "2", "--dry"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"torchcaps train little/a --seed 1 --record  # \d+ s", said)
    assert re.search(r"2 runs, \d+ s for 2 by earlier runs\.", said)
    registered.recipe("little/a", replace(get_recipe("little/a"), epochs=7))
    assert main(["paper", "run", "little", "--only", "little/a", "--dry"]) == 0
    assert re.search(r"little/a --seed 0 --record  # \d+ s in another", capsys.readouterr().out)
    assert main(["paper", "run", "little", "--seeds", "2", "--dry", "--results", "elsewhere"]) == 0
    said = capsys.readouterr().out
    assert "# never run" in said and "4 runs, 0 s for 0 by earlier runs; 4 were never run." in said


def test_runs_of_any_seed_count_and_some_recipes_can_be_asked_for(paper, capsys):
    results = paper / "results"
    assert not run_job(Job("little/a", 5), "", results).error
    assert missing("little", (), 2, results) == [
        Job("little/b", 0), Job("little/a", 0), Job("little/b", 1)
    ]  # fmt: skip
    assert missing("little", (), 1, results, only=("little/*",)) == [Job("little/b", 0)]
    assert missing("little", (), 2, results, only=("*/a",)) == [Job("little/a", 0)]
    assert main(["paper", "run", "little", "--only", "little/c", "--dry"]) == 2
    assert "unknown recipe 'little/c' in these tables." in capsys.readouterr().err
    assert (
        main(["paper", "run", "little", "--only", "little/a", "*/b", "--seeds", "1", "--dry"]) == 0
    )
    assert "1 runs" in capsys.readouterr().out


def test_a_run_whose_probe_saw_other_data_is_not_whole(paper, registered):
    results = paper / "results"
    assert not run_job(Job("little/a", 0), "", results).error
    probes = ("linear:digits", "linear:digits,fit=train+val")
    for metrics, whole in ((probes[:1], False), (probes, False), ((), True)):
        registered.recipe("little/a", replace(get_recipe("little/a"), metrics=metrics))
        assert (missing("little", (), 1, results, only=("little/a",)) == []) == whole
    registered.recipe("little/a", replace(get_recipe("little/a"), metrics=probes[:1]))
    assert not run_job(Job("little/a", 1), "", results).error
    assert missing("little", (), 1, results, only=("little/a",)) == []
    registered.recipe("little/a", replace(get_recipe("little/a"), metrics=probes))
    assert missing("little", (), 1, results, only=("little/a",)) == [Job("little/a", 0)]


def test_a_stopped_run_goes_on_and_a_failed_one_is_named(paper, monkeypatch, capsys):
    original = Training.step

    def stopping(self):
        original(self)
        if self.recipe.name == "little/a" and self.state.step == 5:
            signal.raise_signal(signal.SIGINT)

    def failing(self):
        if self.recipe.name == "little/a":
            raise TorchcapsError("This one fails.")
        original(self)

    monkeypatch.setattr(Training, "step", stopping)
    assert main(["paper", "run", "little", "--seeds", "1"]) == 130
    assert not lines(paper)  # Ctrl-C stops all, not one of them
    monkeypatch.setattr(Training, "step", failing)
    assert main(["paper", "run", "little", "--seeds", "1"]) == 1
    captured = capsys.readouterr()
    assert "little/a seed 0: This one fails." in captured.out
    assert "1 of 2 runs failed" in captured.err
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


def test_a_table_that_no_recipe_fills(paper, registered):
    registered.table(table(name="empty", rows="C"))
    with pytest.raises(TorchcapsError, match="no recipe fills this table"):
        missing("little", ("empty",), 1, paper / "results")


def test_the_papers_protocol_has_rows_of_its_own(paper, registered, capsys):
    made = get_recipe("little/a")
    stopped = replace(made, stop_on="test", target_accuracy=0.01)
    registered.recipe("little/a", made, lambda _: stopped)
    results = paper / "results"
    assert missing("little", (), 1, results, "paper") == [Job("little/a", 0, "paper")]
    assert main(["paper", "run", "little", "--seeds", "1", "--protocol", "paper"]) == 0
    assert "A [paper]" in capsys.readouterr().out
    assert {x["protocol"] for x in lines(paper)} == {"paper"}
    assert len(missing("little", (), 1, results)) == 2
    with pytest.raises(TorchcapsError, match="no protocol"):
        get_recipe("little/b", "paper")


def test_rows_that_another_table_trains_are_found_by_name(paper, registered):
    registered.table(table(name="two", rows="B"))
    assert missing("little", ("two",), 1, paper / "results") == [Job("little/b", 0)]


def test_a_folder_with_another_recipe_is_not_taken_for_this_one(paper, registered):
    job = Job("little/a", 0)
    assert run_job(job, "", paper / "results").error == ""
    registered.recipe("little/a", replace(get_recipe("little/a"), batch_size=100))
    done = run_job(job, "", paper / "elsewhere")
    assert "another recipe" in done.error and not (paper / "elsewhere").exists()


def test_a_changed_recipe_is_run_again(paper, registered):
    results = paper / "results"
    assert run_job(Job("little/a", 0), "", results).error == ""
    assert Job("little/a", 0) not in missing("little", (), 1, results)
    registered.recipe("little/a", replace(get_recipe("little/a"), batch_size=100))
    assert Job("little/a", 0) in missing("little", (), 1, results)


def test_a_measure_that_failed_is_taken_the_next_time(paper, registered, monkeypatch):
    registered.table(table(ece=Column(("digits",), "ece")))
    results = paper / "results"
    job = missing("little", (), 1, results)[0]
    assert job.metrics == ("calibration",)

    def fails(*_):
        raise TorchcapsError("no extra")

    with monkeypatch.context() as patch:
        patch.setattr("torchcaps.training.evaluate.evaluate_metrics", fails)
        assert run_job(job, "", results).error == "no extra"
    assert job in missing("little", (), 1, results)
    assert run_job(job, "", results).error == ""
    assert job.recipe not in {j.recipe for j in missing("little", (), 1, results)}
    assert sum(x["metric"] == "accuracy" and x["split"] == "test" for x in lines(paper)) == 1


def test_a_dry_run_names_the_command_that_measures_too(paper, registered, capsys):
    registered.table(table(ece=Column(("digits",), "ece")))
    asked = ["paper", "run", "little", "--seeds", "1", "--only", "little/a", "--dry"]
    measuring = "torchcaps eval runs/little-a-s0 --metrics calibration --record"
    assert main(asked) == 0
    assert (
        f"torchcaps train little/a --seed 0 --record && {measuring}  #" in capsys.readouterr().out
    )
    assert run_job(Job("little/a", 0), "", paper / "results").error == ""
    assert main(asked) == 0
    said = capsys.readouterr().out
    assert f"{measuring}  #" in said and "torchcaps train" not in said


def test_a_run_that_is_gone_and_fills_no_cell_is_run_again(paper, registered):
    registered.table(table(ece=Column(("digits",), "ece")))
    results = paper / "results"
    job = Job("little/a", 0, metrics=("calibration",))
    assert run_job(replace(job, metrics=()), "", results).error == ""
    assert missing("little", (), 1, results, only=("little/a",)) == [job]  # measured where it is
    shutil.rmtree(job.folder)
    assert missing("little", (), 1, results, only=("little/a",)) == [job]
    assert run_job(job, "", results).error == ""
    shutil.rmtree(job.folder)
    assert missing("little", (), 1, results, only=("little/a",)) == []


def test_recording_a_run_names_what_its_tables_show_beyond_it(paper, registered, capsys):
    command = "torchcaps eval runs/little-a-s0 --metrics calibration --record"
    told = f"The paper's table has more metrics: {command}"
    assert main(["train", "little/a", "--record"]) == 0
    assert "more metrics" not in capsys.readouterr().out
    registered.table(table(ece=Column(("digits",), "ece")))
    assert main(["paper", "record", "runs/little-a-s0"]) == 0
    assert told in capsys.readouterr().out
    assert main(["train", "little/a", "--record", "--seed", "1"]) == 0
    assert told.replace("s0", "s1") in capsys.readouterr().out
    assert main(["train", "little/a", "--seed", "2"]) == 0
    assert "more metrics" not in capsys.readouterr().out


def test_only_rows_with_a_column_for_their_data(paper, registered):
    registered.table(table(x=Column(("mnist",))))
    with pytest.raises(TorchcapsError, match="no recipe fills this table"):
        missing("little", (), 1, paper / "results")


def test_a_run_that_lacks_a_set_is_run_again(paper, registered):
    results = paper / "results"
    run_job(Job("little/a", 0), "", results)
    assert Job("little/a", 0) not in missing("little", (), 1, results)
    more = replace(get_recipe("little/a"), metrics=("accuracy:rotated:digits,degrees=30",))
    registered.recipe("little/a", more)
    assert Job("little/a", 0) in missing("little", (), 1, results)


def test_a_row_made_of_another_tables_row_is_found(paper, registered):
    made = replace(table(name="table2", rows="C"), derived={"C": ("A", "")})
    registered.table(made)
    assert missing("little", ("table2",), 1, paper / "results") == [Job("little/a", 0)]
