import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.data import files
from tests.models.test_registry import needs_timm
from torchcaps.cli import main
from torchcaps.cli.table_format import as_markdown, pieces, repeated
from torchcaps.data import Dataset
from torchcaps.data import load as load_data
from torchcaps.errors import TorchcapsWarning
from torchcaps.metrics.base import read_metric
from torchcaps.metrics.probes import logistic
from torchcaps.models.photos import features
from torchcaps.models.photos.backbone import BACKBONES, Source
from torchcaps.papers.records import append_record
from torchcaps.papers.tables import cells, get_table, list_tables
from torchcaps.training.loop import start
from torchcaps.training.recipe import DataSpec, HardwareSpec, Recipe
from torchcaps.training.registry import digest, get_recipe, recipes, revision
from torchcaps.training.tasks import task_class

TODAY = get_recipe("robustness/table1/capsnet")


def line(value, seed=0, row="CapsNet", data="affnist-like:mnist", recipe=TODAY.name, **more):
    protocol = more.get("protocol", "ours")
    known = get_recipe(recipe, protocol) if protocol in ("ours", "paper") else TODAY
    return {
        "paper": "robustness", "table": "table1", "row": row, "protocol": "ours", "seed": seed,
        "recipe": recipe, "run": f"{recipe} {protocol} {seed}", "date": "2026-11-16",
        "digest": digest(known), "revision": revision(known),
        "data": data, "split": "test", "metric": "accuracy", "value": value, **more,
    }  # fmt: skip


def write(folder, lines):
    (folder / "robustness.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))


def cell(folder, row="CapsNet", column="affNIST", protocol="ours", older=False):
    found = cells(get_table("robustness", "table1"), folder, older)
    return next(
        c for c in found if (c["row"], c["column"], c["protocol"]) == (row, column, protocol)
    )


def test_cells_are_means_over_seeds(tmp_path):
    write(tmp_path, [
        line(0.78, 0), line(0.80, 1), line(0.5, 2, superseded_by="a later line"),
        line(0.99, 0, data="translated:mnist"), line(0.3, 0, split="val"),
        line(0.9, 0, protocol="paper"), line(0.1, 5), line(float("nan"), 6),
        {"kind": "supersede", "match": {"seed": 5}, "because": "a slip"},
    ])  # fmt: skip
    found = cell(tmp_path)
    assert found["n"] == 2 and found["mean"] == pytest.approx(79) and found["best"] == 80
    assert found["std"] == pytest.approx(2**0.5) and found["paper_value"] == 79
    assert found["repeated"] == []
    assert cell(tmp_path, protocol="paper")["mean"] == 90
    assert cell(tmp_path, column="MNIST")["mean"] == 99


def test_one_run_on_two_sets_of_a_column_counts_once_by_the_first_named(tmp_path):
    for lines in ([line(0.78), line(0.8, data="affnist")], [line(0.8, data="affnist"), line(0.78)]):
        write(tmp_path, lines)
        found = cell(tmp_path)
        assert found["n"] == 1 and found["mean"] == 78


def test_a_row_may_take_runs_of_some_tables_alone(tmp_path):
    table = replace(get_table("robustness", "best"), only={"ConvNet-Modern": ("best",)})
    modern = "robustness/table1/convnet-modern"
    write(tmp_path, [line(0.9, row="ConvNet-Modern", recipe=modern)])
    for chosen, wanted in ((get_table("robustness", "best"), 1), (table, 0)):
        found = [c["n"] for c in cells(chosen, tmp_path) if c["row"] == "ConvNet-Modern"]
        assert max(found) == wanted


def test_a_column_may_take_runs_of_some_tables_alone(tmp_path):
    table = get_table("robustness", "table1")
    write(tmp_path, [line(0.78)])
    (named,) = [c for c in table.columns.values() if c.data[0] == "affnist-like:mnist"]
    for tables, wanted in (((), 1), (("table1",), 1), (("table2",), 0)):
        chosen = replace(table, columns={"affNIST": replace(named, tables=tables)})
        assert max(c["n"] for c in cells(chosen, tmp_path)) == wanted


def test_a_seed_that_was_run_twice_counts_once_and_is_named(tmp_path, capsys):
    write(tmp_path, [line(0.7), line(0.9, run="another"), line(0.6, 1)])
    found = cell(tmp_path)
    assert found["n"] == 2 and found["mean"] == pytest.approx(70) and found["best"] == 90
    assert found["repeated"] == [0]
    assert main(["paper", "table", "robustness", "table1", "--results", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "CapsNet: seed 0 was run more than once (affNIST)" in said


def test_rows_with_the_same_repeated_seeds_share_a_sentence():
    entries = [
        {"row": row, "column": column, "repeated": seeds}
        for row, seeds in (("linear", [0, 1]), ("capsules, self", [0, 1]), ("MLP", [2]))
        for column in ("half", "axis")
    ]
    assert repeated(entries) == [
        "linear; capsules, self: seeds 0, 1 were run more than once (half, axis); the mean of the "
        "runs counts.",
        "MLP: seed 2 was run more than once (half, axis); the mean of the runs counts.",
    ]


def test_lines_of_a_recipe_as_it_was_count_on_request(tmp_path):
    old = line(0.5, 3, digest="0" * 16)
    raised = line(0.4, 4, revision=revision(TODAY) - 1)
    modified = line(0.3, 5, protocol="modified", digest="1" * 16)
    write(tmp_path, [line(0.7), old, raised, modified])
    assert cell(tmp_path)["n"] == 1 and cell(tmp_path, older=True)["n"] == 3
    assert cell(tmp_path, protocol="modified")["mean"] == 30


def test_lines_without_a_digest_count_once_they_are_adopted_until_the_recipe_changes(
    tmp_path, registered, capsys
):
    bare = {k: v for k, v in line(0.7).items() if k not in ("digest", "revision")}
    write(tmp_path, [bare])
    assert cell(tmp_path)["n"] == 0
    assert main(["paper", "amend", "robustness", "--set-digests", "--results", str(tmp_path)]) == 0
    assert cell(tmp_path)["n"] == 1
    assert main(["paper", "amend", "robustness", "--set-digests", "--results", str(tmp_path)]) == 1
    registered.recipe(TODAY.name, replace(TODAY, epochs=21))
    assert cell(tmp_path)["n"] == 0 and cell(tmp_path, older=True)["n"] == 1


def test_lines_move_to_the_recipe_that_has_their_setting(tmp_path, capsys):
    """EM-CapsNet's first lines are of windows that do not compete; no other line goes with them."""
    old, new = "robustness/table1/em-capsnet", "robustness/table1/em-capsnet-window"
    setting = get_recipe(new)
    known = {"digest": digest(setting), "revision": revision(setting)}
    window = line(0.9, 0, "EM-CapsNet", recipe=old, **known)
    assert digest(get_recipe(old)) != digest(setting)
    write(tmp_path, [window, line(0.8, 1, "EM-CapsNet", recipe=old)])
    assert cell(tmp_path, setting.row)["n"] == 0
    words = ["--recipe", old, "--set-recipe", new, "--because", "all", "--results", str(tmp_path)]
    assert main(["paper", "amend", "robustness", *words]) == 0
    assert cell(tmp_path, setting.row)["mean"] == pytest.approx(90)
    assert cell(tmp_path, "EM-CapsNet")["mean"] == pytest.approx(80)
    assert main(["paper", "amend", "robustness", *words]) == 1
    assert "no line matches" in capsys.readouterr().err


def test_lines_move_with_a_pretraining_that_was_renamed_and_changed_ones_with_theirs(tmp_path):
    old, new = "mcae/table1/imagenette", "mcae/table1/imagenette-large"
    setting = get_recipe(new)
    known = {"digest": digest(setting, "mcae/pretrain/imagenette"), "revision": revision(setting)}
    shared = {"paper": "mcae", "data": "imagenette", "recipe": old}
    lines = [
        {**line(0.7, 0, "MCAE"), **shared, **known},
        {**line(0.8, 1, "MCAE"), **shared, "protocol": "modified", "digest": "0" * 16},
        {**line(0.9, 2, "MCAE"), **shared, "digest": "1" * 16},
    ]
    (tmp_path / "mcae.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    words = ["paper", "amend", "mcae", "--recipe", old, "--set-recipe", new, "--because", "small"]
    words += ["--results", str(tmp_path)]
    assert main(words) == 1  # its pretraining had another name
    assert main([*words, "--old-pretraining", "mcae/pretrain/imagenette"]) == 0
    assert main([*words, "--protocol", "modified"]) == 0
    found = {
        (c["row"], c["protocol"]): c["mean"]
        for c in cells(get_table("mcae", "table1"), tmp_path)
        if c["column"] == "Imagenette" and c["n"]
    }
    assert found == {
        ("MCAE, large patches", "ours"): pytest.approx(70),
        ("MCAE, large patches", "modified"): pytest.approx(80),
    }


def test_recipes_that_fill_one_row_are_runs_of_it(tmp_path):
    table = get_table("mcae", "views")
    first, second = table.columns["novel azimuth"].data[:2]
    names = [f"mcae/views/azimuth-{toy}" for toy in (0, 1)]
    lines = [
        {**line(value, 0, "best", data, recipe), "paper": "mcae", "table": "views"}
        for value, data, recipe in ((0.7, first, names[0]), (0.9, second, names[1]))
    ]
    (tmp_path / "mcae.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    found = next(c for c in cells(table, tmp_path) if c["row"] == "best")
    assert found["n"] == 2 and found["mean"] == pytest.approx(80)


def test_a_row_of_differences_is_paired_by_seed(tmp_path, capsys):
    table = replace(
        get_table("robustness", "table1"),
        rows={"CapsNet": {}, "ConvNet-R": {}, "difference": {}},
        differences={"difference": ("CapsNet", "ConvNet-R")},
    )
    rival = {"row": "ConvNet-R", "recipe": "robustness/table1/convnet-modern"}
    write(tmp_path, [
        line(0.70, 0), line(0.74, 1), line(0.81, 2), line(0.1, 3), line(0.9, 0, protocol="paper"),
        line(0.69, 0, **rival), line(0.72, 1, **rival), line(0.78, 2, **rival),
        line(0.9, 4, **rival),
    ])  # fmt: skip
    entries = cells(table, tmp_path)
    found = next(c for c in entries if (c["row"], c["column"]) == ("difference", "affNIST"))
    assert found["n"] == 3 and found["mean"] == pytest.approx(2)  # of 1, 2 and 3 points
    assert found["interval"] == pytest.approx(4.3027 / 3**0.5, rel=1e-4)
    entries = [c for c in entries if c["column"] == "affNIST" and c["protocol"] == "ours"]
    assert "| difference | +2.00 ± 2.48 (3) |" in as_markdown(table, ["affNIST"], entries)
    (piece,) = pieces(table, ["affNIST"], entries, beyond=False)
    assert str(list(piece.columns[1].cells)[-1]) == "+2.00 ± 2.48 (3)"
    write(tmp_path, [line(0.70, 0), line(0.69, 1, **rival)])
    alone = next(c for c in cells(table, tmp_path) if c["row"] == "difference")
    assert alone["n"] == 0 and alone["mean"] is None and alone["interval"] is None


def test_a_cell_without_a_run_is_empty_and_not_guessed(tmp_path):
    found = cell(tmp_path, "SCAE")
    assert found["n"] == 0 and found["mean"] is None and found["best"] is None


def test_a_damaged_line_is_named_and_costs_nothing_else(tmp_path, capsys):
    write(tmp_path, [line(0.7)])
    path = tmp_path / "robustness.jsonl"
    path.write_text(path.read_text() + "not json\n")
    assert cell(tmp_path)["n"] == 1
    assert (
        main(["paper", "table", "robustness", "table1", "--results", str(tmp_path), "--json"]) == 0
    )
    assert "robustness.jsonl:2" in capsys.readouterr().err


def test_every_row_with_a_recipe_is_in_its_table():
    for name in recipes():
        recipe = get_recipe(name)
        if recipe.paper:
            table = get_table(recipe.paper, recipe.table)
            filled = {source for source, _ in table.derived.values()}
            assert recipe.row in {*table.rows, *filled}, name
    assert list_tables("robustness")


@pytest.fixture(scope="module")
def tried() -> set[Recipe | tuple[str, ...]]:
    """What was run in this file already: so small, many recipes are the same run."""
    return set()


SMALL = {
    "capsnet": {"channels": 4, "num_types": 2, "hidden": (8,)},
    "convnet-r": {"channels": 8, "hidden": (8,)},
    "em-capsnet": {"channels": 4, "num_types": (2, 2, 2), "num_iters": 2},
    "ge-capsnet": {"num_types": (2, 2), "channels": 4},
    "view-capsnet": {"channels": (4,) * 7, "pose_dim": 2},
    "inverted": {"channels": 4, "num_types": 2, "pose_dim": 4},
    "cnn": {"channels": 4, "hidden": 8},
    "sr-capsnet": {"num_types": 2, "pose_dim": 4, "channels": 4},
    "capsule-head": {"backbone": "tiny", "weights": "none", "num_types": 2},
    "plain-head": {"backbone": "tiny", "weights": "none", "hidden": 8},
    "mcae": {"width": 8, "depth": 1, "num_types": 4, "pose_dim": 4, "decoder_pose_dim": 4},
    "sparse": {"channels": 4, "num_types": 2, "hidden": (8,)},
    "autoencoder": {"channels": 4, "units": 6, "hidden": (8,)},
    "generative": {
        "num_caps": (3, 4),
        "template_size": 4,
        "channels": 4,
        "width": 8,
        "heads": 2,
        "depth": 1,
        "inducing": 2,
    },
    "vae": {"hidden": (8,), "units": 3},
    "constellation": {"width": 8, "heads": 2, "depth": 1},
    "constellation-covers": {"votes": 1},
    "scae": {
        "num_caps": (3, 4),
        "template_size": 4,
        "channels": 4,
        "features": 2,
        "width": 4,
        "depth": 1,
        "code": 8,
    },
}


def on_digits(name: str) -> str:
    """A data set of the same kind that is drawn on the embedded digits."""
    name = re.sub(r":?(fashion-)?mnist$|:mnist.*$", ":digits", name).strip(":")
    if name.startswith(("cifar", "smallnorb", "image")):
        return "translated:digits,size=32"
    if "multimnist" in name or "affnist" in name:
        return re.sub(r",copies=[\d]+", "", name) + ",copies=2"
    return name


def fruits_are_digits(registered) -> None:
    def load(
        root: Path, test: str = "half", *, seed: int,
        size: str = "", mode: str = "", rotated: str = "", classes: str = "",
    ) -> Dataset:  # fmt: skip
        return turned(load_data("digits", root, seed=seed))

    def overlapping(
        root: Path, test: str = "half", *, seed: int, size: str = "", classes: str = ""
    ) -> Dataset:
        data = load_data("digits", root, seed=seed)
        splits = (data.train, data.val, data.test)
        pairs = (replace(s, labels=torch.stack([s.labels, -1 - 0 * s.labels], 1)) for s in splits)
        return replace(data, **dict(zip(("train", "val", "test"), pairs, strict=True)))

    registered.data("fruits-views", load)
    registered.data("fruits-overlap", overlapping)


def turned(data: Dataset) -> Dataset:
    """The same images as frames of the films of two objects, with their angles."""
    for name in ("train", "val", "test"):
        split = getattr(data, name)
        frames = torch.arange(len(split))
        factors = {"frame": frames, "turn": frames / 10}
        split = replace(split, labels=split.labels // 5, factors=factors)
        data = replace(data, **{name: split})
    return replace(data, classes=("first", "second"))


def one_per_table() -> list[object]:
    """All recipes; but for the first of each table they are slow tests."""
    seen, parameters = set(), []
    for name in recipes():
        table = (get_recipe(name).table, get_recipe(name).model.family)
        parameters.append(pytest.param(name, marks=[pytest.mark.slow] if table in seen else []))
        seen.add(table)
    return parameters


@pytest.mark.parametrize("name", one_per_table())
def test_every_recipe_runs(name, tmp_path, few_digits, tried, registered, monkeypatch):
    """A few steps on a few digits, with everything but the size as the recipe says."""
    two_parts = Source(
        lambda: nn.Sequential(nn.Conv2d(3, 6, 8, 8), nn.Conv2d(6, 6, 1)), 6, (0.5,) * 3, (0.5,) * 3
    )
    monkeypatch.setitem(BACKBONES, "tiny", two_parts)
    monkeypatch.setattr(features, "cache_folder", lambda: tmp_path / "features")
    monkeypatch.setattr(logistic, "PENALTIES", (1e-2,))  # tests/probes chooses between several
    recipe = get_recipe(name)
    family, batch_size = recipe.model.family, 40
    few_digits(25)
    fruits_are_digits(registered)
    if family == "timm":
        needs_timm()
    fields = SMALL.get(family, {})
    if family in ("convnet", "convnet-modern"):
        fields = {"channels": tuple(4 for _ in recipe.model.channels)}
    data = on_digits(recipe.data.name)
    if "resnet" in getattr(recipe.model, "backbone", ""):  # its width cannot be replaced
        data, batch_size = "translated:digits,size=28", 20
        few_digits(50)
    if getattr(recipe.model, "frames", 1) > 1 or getattr(recipe.model, "test_frames", 0) > 1:
        fields = {**fields, "frames": 2, "test_frames": 2}
    metrics = []
    for text in recipe.metrics:
        kind, colon, other = text.partition(":")
        other = other.replace("scored=10000", "scored=20").replace("mnist", "digits")
        other = re.sub(r"(solved|starts)=\d+", r"\1=2", other)
        jobs = ",jobs=1" if kind == "svm" else ""  # few images: processes cost more than fits
        other = on_digits(other) if other else ""
        other = data if other.startswith("translated:digits,size=") else other
        metrics.append(kind + colon + other + jobs)
    made = replace(
        recipe, data=DataSpec(name=data, augment=recipe.data.augment), metrics=tuple(metrics),
        watch=recipe.watch, model=replace(recipe.model, **fields), epochs=1, batch_size=batch_size,
        steps=min(recipe.steps, 3), validate_every=min(recipe.validate_every, 2),
        hardware=HardwareSpec(),  # bfloat16 is slow on most CPUs
    )  # fmt: skip
    if recipe.before:  # its pretraining is a recipe too, and tried as such
        assert get_recipe(recipe.before).task.kind in ("masked", "elbo", "classify")
    alike = replace(made, name="", paper="", table="", row="", before="")
    bare = replace(alike, data=replace(made.data, augment=()))
    if {bare, made.data.augment} <= tried:  # this run with other augmentations, and these elsewhere
        return
    tried |= {bare, made.data.augment}
    if task_class(made.task).needs_start:
        first = replace(made, task=get_recipe(recipe.before).task, metrics=())
        made = replace(made, start_from=str(start(first, tmp_path / "first").folder))
    record = start(made, tmp_path / "run").record()
    said = append_record(record, tmp_path / "results")
    path = tmp_path / f"results/{recipe.paper or 'other'}.jsonl"
    lines = [json.loads(x) for x in path.read_text().splitlines()]
    assert f"{len(lines)} lines" in said
    assert "already" in append_record(record, tmp_path / "results")
    assert len(path.read_text().splitlines()) == len(lines)
    tested = {read_metric(text)[1] for text in metrics} - {""}
    assert {x["data"] for x in lines} == {data, *tested}
    needed = "commit date device command versions seconds seed recipe run digest revision"
    assert set(needed.split()) <= set(lines[0])


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
    with pytest.warns(TorchcapsWarning, match="cifar100: classes with no"):  # 300 images
        record = start(tried, tmp_path / "run").record()
    assert {r["metric"] for r in record["results"]} == {"accuracy", "loss"}
    paper = get_recipe("inverted/fast-100", "paper")
    assert (paper.epochs, paper.batch_size, paper.task.smoothing) == (350, 128, 0)
    assert paper.optimizer.lr == 0.1 and paper.stop_on == "val"
