"""Results that nothing can change: one writer at a time, amendments, torn lines set aside."""

import json
import multiprocessing
import os
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from torchcaps.cli import main
from torchcaps.errors import TorchcapsError
from torchcaps.papers.records import (
    PROBED,
    RESULTS,
    amend,
    append,
    append_record,
    parse_lines,
    read,
    results_file,
    run_of,
)
from torchcaps.training.provenance import command_line

WHERE = {"command": "c", "commit": "abc", "date": "2026-11-16T00:00:00+00:00", "device": "d"}


def record(run="r1", value=0.5, **recipe):
    fields = {
        "paper": "little",
        "table": "t",
        "row": "A",
        "protocol": "ours",
        "seed": 0,
        "name": "x",
    }
    result = {"data": "digits", "split": "test", "metric": "accuracy", "value": value, "n": 5}
    return {"recipe": {**fields, **recipe}, "run": run, **WHERE, "results": [result]}


def test_a_run_is_recorded_once_and_two_runs_of_one_second_twice(tmp_path):
    assert "1 lines appended" in append_record(record(), tmp_path)
    assert "already" in append_record(record(), tmp_path)
    assert "1 lines appended" in append_record(record("r2", 0.7), tmp_path)
    lines, problems = read(tmp_path / "little.jsonl")
    assert [line["value"] for line in lines] == [0.5, 0.7] and not problems


def test_new_numbers_of_a_run_join_it(tmp_path):
    append_record(record(), tmp_path)
    more = record()
    more["results"].append({**more["results"][0], "metric": "ece"})
    assert "1 lines appended" in append_record(more, tmp_path)
    assert [x["metric"] for x in read(tmp_path / "little.jsonl")[0]] == ["accuracy", "ece"]


def test_half_a_line_is_set_aside_and_costs_nothing_else(tmp_path):
    path = tmp_path / "little.jsonl"
    append_record(record("r1"), tmp_path)
    append_record(record("r2"), tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    lines, problems = read(path)
    assert [x["run"] for x in lines] == ["r1"]
    assert len(problems) == 1 and "little.jsonl:2" in problems[0]
    append_record(record("r3"), tmp_path)
    assert [x["run"] for x in read(path)[0]] == ["r1", "r3"] and not read(path)[1]
    torn = (tmp_path / "little.torn").read_bytes()
    assert whole.startswith(path.read_bytes().splitlines()[0]) and torn.strip() in whole
    append_record(record("r2"), tmp_path)
    assert [x["run"] for x in read(path)[0]] == ["r1", "r3", "r2"]


def test_a_missing_last_newline_merges_no_lines(tmp_path):
    path = tmp_path / "little.jsonl"
    append_record(record("r1"), tmp_path)
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    append_record(record("r2"), tmp_path)
    assert [x["run"] for x in read(path)[0]] == ["r1", "r2"]
    assert not (tmp_path / "little.torn").exists()


@pytest.mark.parametrize("text", ["[]", "null", '"x"', "{}", '{"recipe": 1}', "{", "\x00\xff"])
def test_foreign_lines_are_named_and_left_out(tmp_path, text):
    path = tmp_path / "little.jsonl"
    append_record(record(), tmp_path)
    path.write_text(text + "\n" + path.read_text())
    lines, problems = parse_lines(path)
    assert len(lines) == 1 and "little.jsonl:1" in problems[0]
    append_record(record("r2"), tmp_path)
    assert len(read(path)[0]) == 2


@pytest.mark.parametrize("change", [{"value": "x"}, {"seed": "0"}])
def test_a_line_whose_number_is_none_is_left_out(tmp_path, change):
    append_record(record(), tmp_path)
    path = tmp_path / "little.jsonl"
    path.write_text(path.read_text() + json.dumps({**json.loads(path.read_text()), **change}))
    lines, problems = parse_lines(path)
    assert len(lines) == 1 and "little.jsonl:2" in problems[0]


WRITERS = 50


def _write(number: int, name: str, folder: Path, together: Barrier) -> None:
    together.wait(30)
    append_record(record(name.format(number)), folder)


@pytest.mark.parametrize("name, runs", [("run {}", WRITERS), ("one run", 1)], ids=str)
def test_fifty_writers_at_once_lose_and_double_nothing(name, runs, tmp_path):
    """Each with a run of its own, and all with the same one."""
    fork = multiprocessing.get_context("fork")
    together = fork.Barrier(WRITERS)
    writers = [
        fork.Process(target=_write, args=(n, name, tmp_path, together)) for n in range(WRITERS)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    lines, problems = read(tmp_path / "little.jsonl")
    assert len(lines) == runs and not problems
    assert {x["run"] for x in lines} == {name.format(n) for n in range(WRITERS)}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_takes_no_files_is_told(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(TorchcapsError, match="cannot be written"):
        append_record(record(), tmp_path)


def test_a_place_that_is_no_folder_is_told(tmp_path):
    (tmp_path / "results").write_text("a file of somebody's")
    with pytest.raises(TorchcapsError, match="cannot be written"):
        append_record(record(), tmp_path / "results")


@pytest.mark.parametrize("change", [{"results": [7]}, {"recipe": {}}, {"run": []}, {"commit": {}},
                                    {"results": [{"kind": "supersede"}]}], ids=str)  # fmt: skip
def test_a_damaged_record_is_no_line(change, tmp_path):
    with pytest.raises(TorchcapsError, match="damaged"):
        append_record({**record(), **change}, tmp_path)
    assert not (tmp_path / "little.jsonl").exists()


def test_names_lead_nowhere_else(tmp_path):
    for paper in ("/x/abs", "../up", "a/b", "A B"):
        with pytest.raises(TorchcapsError, match="not a paper's short name"):
            append_record(record(paper=paper), tmp_path)
    assert results_file("", tmp_path) == tmp_path / "other.jsonl"


def test_amendments_speak_of_the_lines_above_them(tmp_path):
    path = tmp_path / "little.jsonl"
    append_record(record("r1", seed=0), tmp_path)
    append_record(record("r2", seed=1), tmp_path)
    before = path.read_text()
    assert amend(path, "supersede", {"seed": 1}, {"because": "a slip"}, WHERE) == 1
    assert amend(path, "rename", {"data": "digits"}, {"data": "digits,shift=8"}, WHERE) == 2
    assert amend(path, "note", {"run": "r1"}, {"note": "shared GPU"}, WHERE) == 1
    append_record(record("r3", seed=2), tmp_path)
    assert path.read_text().startswith(before)
    lines = read(path)[0]
    assert [x.get("superseded_by") for x in lines] == [None, "a slip", None]
    assert [x["data"] for x in lines] == ["digits,shift=8"] * 2 + ["digits"]
    assert [x.get("note") for x in lines] == ["shared GPU", None, None]
    with pytest.raises(TorchcapsError, match="no line matches"):
        amend(path, "supersede", {"seed": 9}, {"because": "x"}, WHERE)


def test_amendments_by_the_program(tmp_path, capsys):
    append_record(record("r1", paper="robustness", name="x"), tmp_path)
    amend_it = ["paper", "amend", "robustness"]
    words = ["--results", str(tmp_path)]
    assert (
        main(["paper", "amend", "robustness", "--recipe", "x", "--because", "a slip", *words]) == 0
    )
    names = ["--data", "digits", "--set-data", "digits,shift=8", "--because", "a new default"]
    assert main([*amend_it, *names, *words]) == 0
    lines, _ = parse_lines(tmp_path / "robustness.jsonl")
    assert [x.get("kind") for x in lines] == [None, "supersede", "rename"]
    for line in lines[1:]:
        assert all(line[key] for key in ("commit", "date", "device", "command", "because"))
    assert main([*amend_it, "--because", "x", *words]) == 2
    assert "Choose lines" in capsys.readouterr().err


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "little.jsonl"
    append_record(record("r1"), tmp_path)
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(TorchcapsError, match="No space left"):
        append(path, [{"kind": "note"}])
    assert path.read_bytes() == before


KNOWN = {
    "paper", "table", "row", "protocol", "seed", "recipe", "data", "split", "metric", "value", "n",
    "fit", "features", "how", "run", "command", "commit", "date", "device", "versions", "digest",
    "revision", "modified", "parameters", "epochs_trained", "steps_trained", "chosen_epoch",
    "seconds", "peak_mb", "data_note", "pretrained", "resumed",
}  # fmt: skip
ONCE = {"note", "superseded_by", "impl"}
"""Inside lines of the first days; since then by amendments alone."""
SINCE = "2026-11-16T13:00:00+00:00"
AMENDMENTS = {
    "note": {"note"}, "supersede": {"because"}, "rename": {"data", "because"},
    "digests": {"digests"}, "move": {"recipe", "table", "row", "digest", "because"},
}  # fmt: skip


@pytest.mark.parametrize("path", sorted(Path("results").glob("*.jsonl")), ids=lambda p: p.stem)
def test_the_recorded_results_hold_nothing_that_the_program_does_not_write(path):
    if path.stem == "benchmarks":
        pytest.skip("rows of benchmarks have fields of their own")
    lines, problems = parse_lines(path)
    assert not problems
    for line in lines:
        assert line["commit"] and line["date"] and line["device"] and line["command"]
        if "kind" in line:
            more = {"kind", "match", "command", "commit", "date", "device", "versions"}
            assert set(line) <= more | AMENDMENTS[line["kind"]]
        else:
            assert set(line) <= KNOWN | (ONCE if line["date"] < SINCE else set()), line["date"]


@pytest.mark.parametrize("program", ["/bin/torchcaps", "/lib/torchcaps/__main__.py"])
def test_a_command_does_not_say_where_data_and_runs_lie(program, monkeypatch):
    words = ["train", "little/a", "--data.root", "/mine", "--seed", "3", "--data-root=/mine"]
    monkeypatch.setattr("sys.argv", [program, *words, "--out", "/mine/run", "--record"])
    assert command_line() == "torchcaps train little/a --seed 3 --record"


def test_a_run_and_a_metric_have_one_value(tmp_path):
    twice = record()
    twice["results"].append(dict(twice["results"][0]))
    assert "1 lines appended" in append_record(twice, tmp_path)
    differs = record("r2")
    differs["results"].append({**differs["results"][0], "value": 0.6})
    with pytest.raises(TorchcapsError, match="two values of accuracy on digits, test: 0.5 and 0.6"):
        append_record(differs, tmp_path)


def test_the_recorded_results_have_one_value_each():
    """Lines that count: neither superseded nor of a working tree with changes."""
    for path in sorted(RESULTS.glob("*.jsonl")):
        values: dict = {}
        for x in read(path)[0] if path.stem != "benchmarks" else ():
            if "superseded_by" in x:
                continue
            key = (*run_of(x), x["data"], x["split"], x["metric"], *(x.get(n) for n in PROBED))
            assert values.setdefault(key, x["value"]) == x["value"], f"{path}: {key}"
            assert not x["commit"].endswith("-dirty"), f"{path}: {key}"


def test_lines_of_one_metric_and_value_are_amended(tmp_path, capsys):
    both = record()
    both["results"].append({**both["results"][0], "metric": "ece"})
    append_record(both, tmp_path)
    words = ["paper", "amend", "little", "--results", str(tmp_path)]
    assert main([*words, "--metric", "ece", "--value", "0.5", "--because", "wrong bins"]) == 0
    assert main([*words, "--metric", "accuracy", "--note", "of 5 images"]) == 0
    accuracy, ece = read(tmp_path / "little.jsonl")[0]
    assert ece["superseded_by"] == "wrong bins" and "superseded_by" not in accuracy
    assert accuracy["note"] == "of 5 images" and "note" not in ece
