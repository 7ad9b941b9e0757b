"""The index of result lines follows its file, whatever happens to either."""

import json
import time

import pytest

from tests.papers.test_records import record
from torchcaps.papers.record_index import index_file
from torchcaps.papers.records import append, append_record, read


def runs(path):
    return [line["run"] for line in read(path)[0]]


@pytest.mark.parametrize("damage", ["gone", "not a database", "empty"])
def test_a_lost_or_damaged_index_is_made_anew(damage, tmp_path):
    path = tmp_path / "little.jsonl"
    append_record(record("r1"), tmp_path)
    if damage == "gone":
        append_record(record("r1"), tmp_path)  # the first has no index yet
        index_file(path).unlink()
    else:
        index_file(path).write_bytes(b"x" * 5000 if damage == "not a database" else b"")
    assert "already in" in append_record(record("r1"), tmp_path)
    append_record(record("r2"), tmp_path)
    assert runs(path) == ["r1", "r2"]


def test_lines_that_others_wrote_are_found(tmp_path):
    path = tmp_path / "little.jsonl"
    append_record(record("r1"), tmp_path)
    first = json.loads(path.read_text())
    append(path, [{**first, "run": "r2"}])  # after the covered part, as git pull may
    assert "already in" in append_record(record("r2"), tmp_path)
    whole = path.read_text()
    path.write_text(json.dumps({**first, "run": "r0"}) + "\n" + whole)  # and before it
    assert "already in" in append_record(record("r0"), tmp_path)
    path.write_text(whole.splitlines(keepends=True)[0])  # lines that are gone can come again
    assert "1 lines appended" in append_record(record("r2"), tmp_path)
    path.unlink()
    assert "1 lines appended" in append_record(record("r1"), tmp_path)
    assert runs(path) == ["r1"]


def test_appending_to_many_lines_takes_as_long_as_to_few(tmp_path):
    """Counted in lines that are parsed, which no load of the machine changes."""
    path = tmp_path / "little.jsonl"
    append_record(record("first"), tmp_path)
    line = json.loads(path.read_text())
    append(path, ({**line, "run": f"r{n}"} for n in range(10_000)))
    append_record(record("second"), tmp_path)  # covers what was appended
    began = time.perf_counter()
    for number in range(5):
        assert "1 lines" in append_record(record(f"new {number}"), tmp_path)
        assert "already" in append_record(record(f"new {number}"), tmp_path)
    seconds = (time.perf_counter() - began) / 10
    parsed = time.perf_counter()
    read(path)
    assert seconds < (time.perf_counter() - parsed) / 3
