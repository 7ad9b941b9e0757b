import json
import re
from dataclasses import replace

import pytest

from tests.data import files
from tests.models.test_registry import needs_timm
from torchcaps.data import registry
from torchcaps.errors import TorchcapsError
from torchcaps.experiments import cells, get_recipe, get_table, recipes, tables
from torchcaps.train.loop import start
from torchcaps.train.recipe import DataSpec, HardwareSpec, Recipe
from torchcaps.train.record import append_results


def line(value, seed=0, row="CapsNet", data="affnist-like:mnist", recipe="capsnet", **more):
    return {
        "paper": "robustness", "table": "table1", "row": row, "protocol": "ours", "seed": seed,
        "recipe": recipe,
        "data": data, "split": "test", "metric": "accuracy", "value": value, **more,
    }  # fmt: skip


def write(folder, lines):
    (folder / "robustness.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))


def cell(folder, row="CapsNet", column="AffNIST", protocol="ours"):
    found = cells(get_table("robustness", "table1"), folder)
    return next(
        c for c in found if (c["row"], c["column"], c["protocol"]) == (row, column, protocol)
    )


def test_cells_are_means_over_seeds(tmp_path):
    write(tmp_path, [
        line(0.78, 0), line(0.80, 1), line(0.5, 2, superseded_by="a later line"),
        line(0.99, 0, data="translated:mnist"), line(0.3, 0, split="val"),
        line(0.9, 0, protocol="paper"),
    ])  # fmt: skip
    found = cell(tmp_path)
    assert found["n"] == 2 and found["mean"] == pytest.approx(79) and found["best"] == 80
    assert found["std"] == pytest.approx(2**0.5) and found["paper_value"] == 79
    assert cell(tmp_path, protocol="paper")["mean"] == 90
    assert cell(tmp_path, column="MNIST")["mean"] == 99


def test_one_run_on_two_sets_of_a_column_counts_once(tmp_path):
    write(tmp_path, [line(0.78), line(0.8, data="affnist")])
    assert cell(tmp_path)["n"] == 1


def test_recipes_that_fill_one_row_are_runs_of_it(tmp_path):
    table = get_table("mcae", "views")
    first, second = table.columns["novel azimuth"].data[:2]
    lines = [
        {**line(value, 0, "best", data, recipe), "paper": "mcae", "table": "views"}
        for value, data, recipe in ((0.7, first, "one"), (0.9, second, "two"))
    ]
    (tmp_path / "mcae.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    found = next(c for c in cells(table, tmp_path) if c["row"] == "best")
    assert found["n"] == 2 and found["mean"] == pytest.approx(80)


def test_a_cell_without_a_run_is_empty_and_not_guessed(tmp_path):
    found = cell(tmp_path, "SCAE")
    assert found["n"] == 0 and found["mean"] is None and found["best"] is None


def test_a_damaged_results_file_is_named(tmp_path):
    (tmp_path / "robustness.jsonl").write_text("{}\nnot json\n")
    with pytest.raises(TorchcapsError, match="jsonl:2"):
        cell(tmp_path)


def test_every_row_with_a_recipe_is_in_its_table():
    for name in recipes():
        recipe = get_recipe(name)
        if recipe.paper:
            assert recipe.row in get_table(recipe.paper, recipe.table).rows, name
    assert tables("robustness")


@pytest.fixture
def few_digits(monkeypatch, digits):
    """The embedded digits, some of them, for whatever is drawn on them; fewer on demand."""

    def take(every: int) -> None:
        parts = {"train": digits.train[:: 2 * every], "val": digits.val[::every]}
        few = replace(digits, **parts, test=digits.test[::every])
        small = replace(registry.entry("digits"), load=lambda root, *, seed: few)
        monkeypatch.setitem(registry._ENTRIES, "digits", small)

    take(5)
    return take


SEEN: set[Recipe] = set()


@pytest.mark.parametrize("name", list(recipes()))
def test_every_recipe_runs(name, tmp_path, few_digits):
    """A few steps on the embedded digits, with everything but the size as the recipe says."""
    recipe = get_recipe(name)
    if recipe.model.family == "timm":
        needs_timm()
    small = {
        "capsnet": {"channels": 4, "num_types": 2, "hidden": (8,)},
        "convnet-r": {"channels": 8, "hidden": (8,)},
        "em-capsnet": {"channels": 4, "num_types": (2, 2, 2), "num_iters": 2},
        "view-capsnet": {"channels": (4,) * 7, "dim": 2},
        "inverted": {"channels": 4, "num_types": 2, "pose_dim": 4},
        "cnn": {"channels": 4, "hidden": 8},
        "sr-capsnet": {"num_types": 2, "dim": 4, "channels": 4},
        "mcae": {"width": 8, "depth": 1, "num_caps": 4, "dim": 4, "decoder_dim": 4},
    }
    if recipe.model.family in ("convnet", "convnet-modern"):
        small[recipe.model.family] = {"channels": tuple(4 for _ in recipe.model.channels)}
    model = replace(recipe.model, **small.get(recipe.model.family, {}))
    name = re.sub(r"(fashion-)?mnist$|:mnist.*$", ":digits", recipe.data.name).strip(":")
    if name.startswith(("cifar", "smallnorb", "image")):
        name = "translated:digits,size=32"
    if "resnet" in getattr(recipe.model, "backbone", ""):  # its width cannot be replaced
        name = "translated:digits,size=28"
        few_digits(25)
    if "multimnist" in name:
        name += ",copies=1"
    digits = DataSpec(name, recipe.data.augment)
    others = tuple(
        f"{e.replace(':mnist', ':digits').split(',copies')[0]},copies=1" for e in recipe.evaluate
    )
    tried = replace(
        recipe, data=digits, evaluate=others, model=model, epochs=1, batch_size=40,
        hardware=HardwareSpec(),  # bfloat16 is slow on most CPUs
    )  # fmt: skip
    if recipe.before:  # its pretraining is a recipe too, and tried as such
        assert get_recipe(recipe.before).objective == "masked"
    alike = replace(tried, name="", paper="", table="", row="", before="")
    if alike in SEEN:  # so small, it is the same run as another recipe's
        return
    SEEN.add(alike)
    record = start(tried, tmp_path / "run").record()
    said = append_results(record, tmp_path / "results")
    path = tmp_path / f"results/{recipe.paper or 'other'}.jsonl"
    lines = [json.loads(x) for x in path.read_text().splitlines()]
    assert f"{len(lines)} lines" in said
    assert "already" in append_results(record, tmp_path / "results")
    assert len(path.read_text().splitlines()) == len(lines)
    assert {x["data"] for x in lines} == {digits.name, *others}
    for key in ("commit", "date", "device", "command", "versions", "seconds", "seed", "recipe"):
        assert key in lines[0]


def test_cifar_100_recipes_run_on_files_of_its_format(tmp_path):
    for part, count in (("train", 300), ("test", 100)):
        files.cifar_python(tmp_path / "cifar-100-python" / part, b"fine_labels", count)
    recipe = get_recipe("inverted/fast-100")
    assert recipe.data.name == "cifar100" and recipe.model.num_classes == 100
    tried = replace(
        recipe, epochs=1, batch_size=90, data=replace(recipe.data, root=str(tmp_path), held_out=10),
        model=replace(recipe.model, backbone="simple", channels=4, num_types=2, pose_dim=4),
        hardware=HardwareSpec(),
    )  # fmt: skip
    record = start(tried, tmp_path / "run").record()
    assert {r["metric"] for r in record["results"]} == {"accuracy", "loss"}
    paper = get_recipe("inverted/fast-100", "paper")
    assert (paper.epochs, paper.batch_size, paper.loss.smoothing) == (350, 128, 0)
    assert paper.optimiser.lr == 0.1 and paper.stop_on == "val"
