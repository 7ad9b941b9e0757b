from dataclasses import replace

from torchcaps.analysis.curves import plot_curves
from torchcaps.cli import main
from torchcaps.training.loop import start
from torchcaps.training.run import by_name


def test_runs_with_equal_names_have_distinct_labels(tiny_recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runs = [
        start(replace(tiny_recipe, epochs=2, seed=seed, row=row), tmp_path / name)
        for name, row, seed in (("a", "same", 0), ("b", "same", 0), ("c", "same", 1), ("d", "x", 0))
    ]
    named = by_name(r.folder for r in runs)
    assert list(named) == ["same, seed 0 (a)", "same, seed 0 (b)", "same, seed 1", "x"]
    figures = plot_curves({name: run.metrics for name, run in by_name(["a", "d"]).items()})
    assert set(figures) == {"loss", "parts", "accuracy"}
    for kind, lines in (("loss", 4), ("parts", 4), ("accuracy", 2)):
        found = figures[kind].axes[0].lines
        assert [len(line.get_xdata()) for line in found] == [2] * lines
    assert main(["plot", "curves", "a", "c", "--out", "f/6.png"]) == 0
    assert (tmp_path / "f/6-parts.png").stat().st_size > 1000
    runs[0].metrics_file.unlink()
    assert main(["plot", "curves", "a"]) == 1
    assert "has no finished epoch" in capsys.readouterr().err


def test_one_epoch_is_a_point_with_whole_ticks():
    line = {"epoch": 0, "step": 3, "lr": 0.1, "train_loss": 1.0, "val_accuracy": 0.5}
    for figure in plot_curves({"a": [line]}).values():
        (axes,) = figure.axes
        assert axes.lines[0].get_marker() == "o"
        low, high = axes.get_xlim()
        assert all(tick == int(tick) for tick in axes.get_xticks() if low <= tick <= high)


def test_one_figure_of_a_report_is_a_command(tiny_recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate("ab"):
        start(replace(tiny_recipe, epochs=1, seed=seed), tmp_path / name)
    assert main(["plot", "support", "a", "b", "--out", "f/3.png"]) == 0  # both in one
    assert main(["plot", "mistakes", "a", "b"]) == 0
    start(replace(tiny_recipe, epochs=1, seed=2), tmp_path / "c" / "a")
    assert main(["plot", "mistakes", "a", "c/a", "--out", "g/m.png"]) == 0
    assert {p.name for p in (tmp_path / "g").iterdir()} == {"m-a.png", "m-a-1.png"}
    assert {p.name for p in tmp_path.rglob("*.png") if p.parent.name in ("f", tmp_path.name)} == {
        "3.png", "mistakes-a.png", "mistakes-b.png",
    }  # fmt: skip
    assert main(["plot", "templates", "generative-one-small.digits", "--out", "f/6.png"]) == 0
    assert main(["plot", "mistakes", "a", "convnet-avg-small.digits", "--out", "f/m.png"]) == 0
    assert {p.name for p in (tmp_path / "f").iterdir()} == {
        "3.png", "6.png", "m-a.png", "m-convnet-avg-small.digits.png",
    }  # fmt: skip
    assert main(["plot", "templates", "generativ.digits"]) == 2
    assert main(["plot", "parts", "a"]) == 1
    assert main(["plot", "suport", "a"]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "tiny: no figure 'parts'. It needs parts with templates." in message
    assert "Did you mean 'support'?" in message
