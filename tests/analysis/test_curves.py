from dataclasses import replace

from torchcaps.analysis import draw_curves
from torchcaps.cli import main
from torchcaps.train.loop import start
from torchcaps.train.run import by_name


def test_curves_of_runs_with_one_row_are_told_apart(tiny_recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runs = [
        start(replace(tiny_recipe, epochs=2, seed=seed, row=row), tmp_path / name)
        for name, row, seed in (("a", "same", 0), ("b", "same", 0), ("c", "same", 1), ("d", "x", 0))
    ]
    named = by_name(r.folder for r in runs)
    assert list(named) == ["same, seed 0 (a)", "same, seed 0 (b)", "same, seed 1", "x"]
    figures = draw_curves({name: run.metrics() for name, run in by_name(["a", "d"]).items()})
    assert set(figures) == {"loss", "parts", "accuracy"}
    for kind, lines in (("loss", 4), ("parts", 4), ("accuracy", 2)):
        found = figures[kind].axes[0].lines
        assert [len(line.get_xdata()) for line in found] == [2] * lines
    assert main(["curves", "a", "c", "--out", "f/6.png"]) == 0
    assert (tmp_path / "f/6-parts.png").stat().st_size > 1000
    runs[0].metrics_file.unlink()
    assert main(["curves", "a"]) == 1
    assert "has ended an epoch" in capsys.readouterr().err


def test_one_epoch_is_a_point_with_whole_ticks():
    line = {"epoch": 0, "step": 3, "lr": 0.1, "train_loss": 1.0, "val_accuracy": 0.5}
    for figure in draw_curves({"a": [line]}).values():
        (axes,) = figure.axes
        assert axes.lines[0].get_marker() == "o"
        low, high = axes.get_xlim()
        assert all(tick == int(tick) for tick in axes.get_xticks() if low <= tick <= high)


def test_one_figure_of_a_report_is_a_command(tiny_recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate("ab"):
        start(replace(tiny_recipe, epochs=1, seed=seed), tmp_path / name)
    assert main(["draw", "support", "a", "b", "--out", "f/3.png"]) == 0  # both in one
    assert main(["draw", "mistakes", "a", "b"]) == 0
    start(replace(tiny_recipe, epochs=1, seed=2), tmp_path / "c" / "a")
    assert main(["draw", "mistakes", "a", "c/a", "--out", "g/m.png"]) == 0
    assert {p.name for p in (tmp_path / "g").iterdir()} == {"m-a.png", "m-a-1.png"}
    assert {p.name for p in tmp_path.rglob("*.png") if p.parent.name in ("f", tmp_path.name)} == {
        "3.png", "mistakes-a.png", "mistakes-b.png",
    }  # fmt: skip
    assert main(["draw", "templates", "zoo:generative", "--out", "f/6.png"]) == 0
    assert main(["draw", "mistakes", "a", "zoo:convnet-avg", "--out", "f/m.png"]) == 0
    assert {p.name for p in (tmp_path / "f").iterdir()} == {
        "3.png", "6.png", "m-a.png", "m-zoo-convnet-avg.png",
    }  # fmt: skip
    assert main(["draw", "templates", "zoo:generativ"]) == 2
    assert main(["draw", "parts", "a"]) == 1
    assert main(["draw", "suport", "a"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "a: there is no parts to see. It has no parts that are drawn." in said
    assert "Did you mean 'support'?" in said
