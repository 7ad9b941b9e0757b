"""Commands do not overwrite files or write into runs, and say so before the work."""

import json
import os
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from rich.console import Console

import torchcaps
from torchcaps.cli import main
from torchcaps.data.pack import _begin as begin_pack
from torchcaps.errors import Interrupted, TorchcapsError
from torchcaps.outputs import MANIFEST
from torchcaps.sweeps.driver import open_sweep, plan
from torchcaps.training import demo, loop
from torchcaps.training.checkpoint import sum_of
from torchcaps.training.registry import get_recipe
from torchcaps.training.run import Run, check_out

MODEL = "capsnet-small.digits"
WRITES = {
    "x.onnx": ["export", MODEL, "--out"],
    "x.pt2": ["export", MODEL, "--format", "torch", "--out"],
    "x.html": ["export", MODEL, "--format", "web", "--single-file", "--out"],
    "page/x.js": ["export", MODEL, "--format", "web", "--out"],
    "x.csv": ["embed", MODEL, "image.png", "--out"],
    "x.npy": ["embed", MODEL, "image.png", "--out"],
    "report.html": ["report", "run", "--out"],
    "x.png": ["plot", "traversal", MODEL, "--out"],
    "digits.png": ["data", "show", "digits", "--out"],
}


USERS = (
    "analysis.render", "api", "explorer.report", "explorer.serve", "explorer.server",
    "explorer.web", "metrics", "parts", "training.loop",
)  # fmt: skip
"""Modules that import what the fixture replaces."""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working folder with a run, where no model can be loaded and no figure computed."""
    monkeypatch.chdir(tmp_path)
    Path("run/model").mkdir(parents=True)
    for file in ("run/recipe.json", "image.png"):
        Path(file).write_text("{}")

    def work(*arguments, **options):
        raise AssertionError("the work has begun")

    for module in USERS:  # so that none of them keeps what is replaced below
        import_module(f"torchcaps.{module}")
    for name in (
        "torchcaps.training.load.load", "torchcaps.api.load", "torchcaps.explorer.shelf.Shelf",
        "torchcaps.explorer.write_report", "torchcaps.analysis.render.render",
        "torchcaps.data.load",
    ):  # fmt: skip
        monkeypatch.setattr(name, work)
    return tmp_path


@pytest.mark.parametrize("file", WRITES)
def test_an_existing_file_stays(place, file, capsys):
    path = Path(file)
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    out = "page" if file.startswith("page") else file
    assert main([*WRITES[file], out]) == 1
    said = capsys.readouterr().err
    assert "already exists" in said and "--force" in said and path.read_text() == "mine"
    assert main([*WRITES[file], out, "--force"]) == 1
    assert "the work has begun" in capsys.readouterr().err


@pytest.mark.parametrize("file", WRITES)
def test_nothing_is_written_into_a_run(place, file, capsys):
    name = "page" if file.startswith("page") else file
    assert main([*WRITES[file], f"run/model/{name}"]) == 1
    assert "lies in the run" in capsys.readouterr().err


def test_names_beside_the_vectors_are_a_users_file_too(place, capsys):
    Path("x.txt").write_text("mine")
    assert main(["embed", MODEL, "image.png", "--out", "x.npy"]) == 1
    assert "x.txt already exists" in capsys.readouterr().err


def test_the_usual_name_of_a_figure_is_a_users_file_too(place, capsys):
    Path("traversal.png").write_text("mine")
    assert main(["plot", "traversal", MODEL]) == 1
    assert "traversal.png already exists" in capsys.readouterr().err


def test_python_functions_take_force(place):
    Path("x").write_text("mine")
    for call in (
        lambda **o: torchcaps.export(MODEL, "x", **o),
        lambda **o: torchcaps.export(MODEL, "x", format="web", single_file=True, **o),
        lambda **o: torchcaps.report("run", out="x", **o),
        lambda **o: torchcaps.plot("traversal", "run", out="x", **o),
    ):
        with pytest.raises(TorchcapsError, match="already exists"):
            call()
        with pytest.raises(AssertionError, match="the work has begun"):
            call(force=True)


def test_a_run_is_refused_before_its_data_is_loaded(place, capsys):
    def train(out):
        assert main(["train", "capsnet-small", "--data", "digits", "--out", out]) == 1
        return capsys.readouterr().err

    Path("full").mkdir()
    Path("full/start.json").write_text('{"run": "of another program"}')
    assert "not empty" in train("full")
    assert Path("full/start.json").read_text() == '{"run": "of another program"}'
    assert "lies in the run" in train("run/model/x")
    assert "already holds a run" in train("run")
    with pytest.raises(TorchcapsError, match="not empty"):
        torchcaps.fit("capsnet-small", data="digits", out="full")


def test_a_run_killed_at_its_start_leaves_a_folder_to_start_in(tmp_path):
    """Before its recipe: start.json alone, half of it under a temporary name, or no file."""
    out = tmp_path / "run"
    out.mkdir()
    check_out(out)
    (out / "start.json.tmp").write_text('{"run": "0')
    check_out(out)
    (out / "start.json").write_text(json.dumps({"run": "0", "sum": sum_of({"run": "0"})}))
    check_out(out)
    (out / "start.json").write_text('{"run": "0')
    with pytest.raises(TorchcapsError, match="is not empty"):
        check_out(out)


def test_no_run_is_made_inside_a_run_by_its_usual_name(place, monkeypatch):
    monkeypatch.chdir("run")
    with pytest.raises(TorchcapsError, match="lies in the run"):
        check_out(None)


@pytest.fixture
def short_demo(tiny_recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = replace(tiny_recipe, epochs=1, batch_size=500, metrics=())
    monkeypatch.setattr(demo, "get_recipe", lambda name: replace(recipe, name=name, row=name))
    monkeypatch.setattr("torchcaps.explorer.write_report", lambda runs, out: out)
    monkeypatch.setattr(demo, "TRANSFORMED", demo.CLEAN)


def test_an_interrupted_demo_is_continued_and_a_finished_one_kept(short_demo, monkeypatch):
    start, begun = loop.start, []

    def interrupted(recipe, out, console):
        begun.append(recipe.name)
        if len(begun) == 2:
            raise Interrupted(str(out))
        return start(recipe, out, console)

    monkeypatch.setattr(loop, "start", interrupted)
    assert main(["demo"]) == 130 and Path("runs/demo", MANIFEST).exists()
    first = Run(Path("runs/demo/capsnet")).record()["date"]
    assert main(["demo"]) == 0 and begun == ["demo/capsnet", *2 * ["demo/convnet-avg"]]
    assert not Path("runs/demo", MANIFEST).exists()
    assert Run(Path("runs/demo/capsnet")).record()["date"] == first
    assert demo.demo_folder(None, False) == Path("runs/demo-2")
    for folder in (Path("runs/demo"), Path("runs/demo/capsnet"), Path("runs/demo/capsnet/x")):
        with pytest.raises(TorchcapsError, match="not empty|lies in the run"):
            demo.demo_folder(folder, False)
    assert demo.demo_folder(None, True) == Path("runs/demo")
    assert not Path("runs/demo/capsnet").exists()
    demo.run_demo(Path("runs/demo"), Console(quiet=True))


def test_packs_and_sweeps_are_not_made_in_runs_or_over_files(place, capsys):
    Path("full").mkdir()
    Path("full/mine").write_text("mine")
    recipe = get_recipe("demo/capsnet")
    settings = plan(recipe, {"optimizer.lr": [1e-3]}, trials=1)
    for folder, said in (("run/x", "lies in the run"), ("full", "not empty")):
        with pytest.raises(TorchcapsError, match=said):
            open_sweep(settings, Path(folder))
        with pytest.raises(TorchcapsError, match=said):
            begin_pack(Path(folder), {})
    Path("page.html").write_text("mine")
    assert main(["sweep", "show", "any", "--html", "page.html"]) == 1
    assert "already exists" in capsys.readouterr().err
    assert os.listdir("full") == ["mine"] and Path("page.html").read_text() == "mine"
