"""Mutation tests of the project: which places change, in which order, and who notices."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cosmic_ray")

from scripts import mutants
from scripts.covering_tests import Coverage

CODE = """from x import y


def f(a: int | None = None, *, height: float = 2.0) -> int | None:
    low = min(a, 3) - 1
    return y.val if low <= 4 and not a else -height
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    path = tmp_path / "code.py"
    path.write_text(CODE)
    return path


def test_every_mutant_changes_its_line_and_no_annotation(file):
    found = list(mutants.mutants_of(file, mutants.operators()))
    for mutant in found:
        before, after = CODE.splitlines(), mutant.source().splitlines()
        changed = [
            n for n, lines in enumerate(zip(before, after, strict=True), 1) if len({*lines}) > 1
        ]
        assert changed == [mutant.line], mutant
        compile(mutant.source(), "code.py", "exec")
    changes = {mutant.source().splitlines()[mutant.line - 1].strip() for mutant in found}
    assert {"low = max(a, 3) - 1", "low = min(a, 3) + 1"} <= changes
    assert any("y.test" in line for line in changes) and any(
        " or not a" in line for line in changes
    )
    assert not any("int & None" in line for line in changes)
    assert len({mutant.id for mutant in found}) == len(found)


def test_another_line_does_not_change_the_order(file):
    first = mutants.in_order(mutants.mutants_of(file, mutants.operators()), seed=1)
    file.write_text(CODE.replace("\n\n\n", "\nz = 5 * 7\n\n\n"))
    later = mutants.in_order(mutants.mutants_of(file, mutants.operators()), seed=1)
    known = {mutant.id for mutant in first}
    assert [m.id for m in later if m.id in known] == [m.id for m in first]
    assert [m.id for m in first] != [m.id for m in mutants.in_order(first, seed=2)]


def test_a_statement_is_covered_by_the_tests_of_its_lines(tmp_path):
    (tmp_path / "a.py").write_text(
        "X = 1\n\n\ndef f(a):\n    return (\n        a\n        + 1\n    )\n"
    )
    coverage = Coverage(tmp_path, [], [], 1, 0.0)
    lines = {"1": [], "4": [], "5": ["t1"], "6": ["t1", "failed"]}
    coverage.add({"seconds": {"t1": 0.5, "t2": 1.0}, "lines": {"a.py": lines}})
    assert coverage.tests("a.py", 7) == {"t1": 0.5}
    assert coverage.tests("a.py", 1) == {"t1": 0.5}, "it runs at import"


def test_reasons_stay_on_the_page():
    result = {"id": "0123456789", "file": "a.py", "line": 3, "text": "a | b", "changed": "a & b",
              "status": "survived", "by": ""}  # fmt: skip
    page = mutants.page_of([result], 0, "# Survivors\n\nLast run: none.\n\n")
    assert "Last run: seed 0, 0 of 1 mutants killed (0.0%); 1 survived." in page
    (row,) = mutants.reasons(page).values()
    assert row == ("a.py:3", "`` a \\| b `` → `` a & b ``", "survived")
    page = page.replace("| survived |", "| equivalent: both are booleans |")
    assert mutants.page_of([result], 0, page) == page
    killed = mutants.page_of([{**result, "status": "killed", "by": "t.py::x"}], 0, page)
    assert "| killed by t.py::x |" in killed


@pytest.mark.slow
def test_a_mutant_fails_in_a_process_of_its_own():
    """Like scripts/mutants.py, the parent process has not imported the module."""
    code = """if True:
        from pathlib import Path
        from scripts.covering_tests import run_tests
        name = "tests/metrics/test_calibration.py::test_bins_of_a_fifteenth"
        path = Path("torchcaps/metrics/calibration.py")
        source, module = path.read_text(), "torchcaps.metrics.calibration"
        for change in ("NUM_BINS = 15", "NUM_BINS = 10"):
            print(run_tests([name], module, source.replace("NUM_BINS = 15", change), 120))
        hanging = source.replace("NUM_BINS = 15", "while True: pass")
        print(run_tests([name], module, hanging, 15))
        assert path.read_text() == source"""
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    name = "tests/metrics/test_calibration.py::test_bins_of_a_fifteenth"
    assert done.stdout.splitlines()[-3:] == ["(0, '')", f"(1, {name!r})", "(None, '')"], done.stderr


def test_one_process_is_forked_at_a_time():
    """filelock refuses a fork that begins while another thread forks."""
    code = """if True:
        import concurrent.futures.thread, math, os, time
        from scripts.covering_tests import child, finished, forked
        running, most = [], [0]
        def before():
            running.append(1)
            most[0] = max(most[0], len(running))
            time.sleep(0.02)
        os.register_at_fork(before=before, after_in_parent=running.pop)
        numbers = forked(lambda n: finished(*child(lambda: n), 60), range(16), 8, math.inf)
        print(sorted(numbers) == list(range(16)), most[0])"""
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert done.stdout == "True 1\n", (done.stdout, done.stderr)
