"""How far tables are filled: counted on a table of a test's own."""

import json
from dataclasses import replace

import pytest

from tests.papers.test_tables import line
from torchcaps.cli import main
from torchcaps.papers.coverage import coverage, fillable
from torchcaps.papers.tables import Column, Table, cells
from torchcaps.training.registry import digest, get_recipe, revision


@pytest.fixture
def little(registered, tmp_path):
    """Two rows with recipes and one without, a column of each direction, one that no recipe has."""
    columns = {
        "digits": Column(("translated:mnist",)),
        "error": Column(("affnist-like:mnist",), "error", lower=True),
        "other": Column(("kmnist",)),
    }
    printed = {"digits": 90.0, "error": 5.0}
    rows = {"one": printed, "two": printed, "nobody": {"digits": 99.0}}
    registered.table(Table("robustness", "little", "A little table", columns, rows))
    plain = get_recipe("robustness/table1/capsnet")
    for row in ("one", "two"):
        registered.recipe(f"robustness/{row}", replace(plain, table="little", row=row))

    def record(row, values, **more):
        recipe = get_recipe(f"robustness/{row}")
        facts = {"table": "little", "digest": digest(recipe), "revision": revision(recipe), **more}
        lines = [
            line(value, seed, row, recipe=recipe.name, **facts) for seed, value in enumerate(values)
        ]
        with (tmp_path / "robustness.jsonl").open("a") as file:
            file.writelines(json.dumps(x) + "\n" for x in lines)

    return record


def counted(folder):
    (found,) = [x for x in coverage("robustness", folder) if x.table == "little"]
    return found.cells, found.run, found.thrice, found.printed, found.reached


def test_only_what_a_recipe_fills_is_a_cell(little, tmp_path):
    table = next(x for x in coverage("robustness", tmp_path) if x.table == "little")
    assert (table.paper, table.title) == ("robustness", "A little table")
    assert counted(tmp_path) == (4, 0, 0, 0, 0)


def test_rows_that_another_row_fills_count(little, registered):
    columns = {"digits": Column(("translated:mnist",))}
    derived = Table(
        "robustness", "more", "", columns, {"again": {}}, ("little",), {"again": ("one", "")}
    )
    assert fillable(derived) == {("again", "digits")}
    assert fillable(replace(derived, only={"again": ("more",)})) == set()


def test_runs_and_what_is_as_printed_are_counted(little, tmp_path):
    little("one", [0.91, 0.92, 0.9], data="translated:mnist")
    little("two", [0.89], data="translated:mnist")
    little("two", [0.95], data="translated:mnist", protocol="modified")
    little("one", [0.06], metric="error")
    little("two", [0.04], metric="error")
    assert counted(tmp_path) == (4, 4, 1, 4, 2)


def test_a_row_with_runs_of_another_protocol_alone_has_its_cells(little, tmp_path):
    little("two", [0.95], data="translated:mnist", protocol="modified")
    assert counted(tmp_path) == (4, 0, 0, 0, 0)


def test_a_table_without_a_paper_is_the_overview(little, tmp_path, capsys):
    little("one", [0.91], data="translated:mnist")
    assert main(["paper", "table", "--results", str(tmp_path), "--markdown"]) == 0
    assert "| robustness little | 4 | 1 | 0 | 1 of 1 |" in capsys.readouterr().out
    assert main(["paper", "table", "table1", "--columns", "MNIST"]) == 2
    assert main(["paper", "table", "--columns", "MNIST"]) == 2
    assert "Name the paper" in capsys.readouterr().err
    assert main(["paper", "table", "--results", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"paper", "table", "cells", "run", "thrice", "printed", "reached"} <= set(found[0])


def test_values_that_measure_something_else_are_not_counted(little, registered, tmp_path, capsys):
    little("one", [0.95], data="translated:mnist")
    columns = {"digits": Column(("translated:mnist",))}
    table = Table("robustness", "little", "", columns, {"one": {"digits": 90.0}})
    registered.table(table)
    assert counted(tmp_path)[3:] == (1, 1)
    for unlike in (("one",), ("digits",)):
        registered.table(replace(table, unlike=unlike))
        assert counted(tmp_path)[3:] == (0, 0)
        other = replace(table, unlike=unlike)
        (cell,) = cells(other, tmp_path)
        assert not other.compares(cell) and cell["paper_value"] == 90
        words = ["paper", "table", "robustness", "little", "--older", "--results", str(tmp_path)]
        assert main(words) == 0
        out = capsys.readouterr().out
        assert "90.0" in out and "measure" in out and "+5.00" not in out


def test_the_papers_overview_compares_like_with_like():
    found = {(x.paper, x.table): x.printed for x in coverage()}
    for table in ("table5", "table5-pooled"):  # scores are 1 to 1,700 times the printed ones
        assert found["robustness", table] == 0
    assert found["mcae", "views"] == 0  # five toys, one at a time
