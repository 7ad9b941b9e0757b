"""Metrics by name: the grammar, learning and scoring, the needs of a metric."""

from dataclasses import dataclass, replace

import pytest
import torch

import torchcaps
from torchcaps.cli import main
from torchcaps.errors import TorchcapsError
from torchcaps.metrics.base import (
    METRICS,
    Metric,
    PreparedMetric,
    metric_of,
    prepare,
    read_metric,
    register_metric,
)
from torchcaps.models import Model
from torchcaps.training.loop import start


class Pixels(Model):
    """A model whose representations are pixels and their mean."""

    provides = frozenset()

    def __init__(self):
        super().__init__()
        self.config = torchcaps.create_model("convnet-avg-small").config
        self.nothing = torch.nn.Parameter(torch.zeros(1))

    def representations(self, images):
        return {"pixels": images.flatten(1), "mean": images.mean((1, 2, 3))[:, None]}


@pytest.mark.parametrize(
    ("text", "name", "data", "options"),
    [
        ("linear", "linear", "", {}),
        ("linear,limit=50", "linear", "", {"limit": 50}),
        ("linear:rotated:digits,degrees=30", "linear", "rotated:digits,degrees=30", {}),
        (
            "knn:affnist-like:digits,fit=test,copies=7,limit=9",
            "knn", "affnist-like:digits,copies=7", {"fit": "test", "limit": 9},
        ),
        ("adversarial,epsilon=0.3", "adversarial", "", {"epsilon": 0.3}),
    ],
)  # fmt: skip
def test_unknown_options_belong_to_the_data(text, name, data, options):
    metric, found = read_metric(text)
    assert metric.name == name and found == data
    assert {key: getattr(metric, key) for key in options} == options


def test_a_probe_learns_from_one_split_and_is_scored_on_others(digits):
    """With pixels as features, true labels can be predicted and random ones cannot."""
    lot = digits.val.labels[torch.randperm(len(digits.val))]
    wrong = replace(digits, val=replace(digits.val, labels=lot))
    for name, least in (("linear", 0.7), ("knn", 0.8)):
        (taken,) = prepare([f"{name},limit=3000"], digits, "digits")
        (line,) = taken.evaluate(Pixels(), "val")
        assert line["value"] > least and line["metric"] == f"{name}_accuracy"
        assert (line["fit"], line["n"], line["split"]) == ("train", 500, "val")
        assert replace(taken, data=wrong).evaluate(Pixels(), "val")[0]["value"] < 0.25
    (few,) = prepare(["linear,features=mean"], digits, "digits")
    assert few.evaluate(Pixels())[0]["value"] < 0.4


def test_a_probe_learns_once(digits):
    (taken,) = prepare(["linear,limit=100"], digits, "digits")
    taken.evaluate(Pixels(), "val")
    learned = taken.metric.learned
    taken.evaluate(Pixels(), "test")
    assert taken.metric.learned is learned
    assert not taken.fresh(torch.device("cpu")).learned


def test_a_probe_may_learn_from_the_split_that_it_is_scored_on(digits):
    """Some papers do so; the result line states it."""
    (own,) = prepare(["knn,fit=test"], digits, "digits")
    (line,) = own.evaluate(Pixels())
    assert line["fit"] == "test" and line["value"] > 0.98


def test_probes_use_generated_images_and_skip_unlabeled_ones(digits):
    drawn = torchcaps.data.load("translated:digits,size=28")
    (taken,) = prepare(["linear,limit=100"], drawn, "x")
    assert 0 < taken.evaluate(Pixels())[0]["value"] < 1
    half = digits.train.labels.clone()
    half[::2] = -1
    some = replace(digits, train=replace(digits.train, labels=half))
    (taken,) = prepare(["linear,limit=100"], some, "x")
    assert taken.evaluate(Pixels())[0]["value"] > 0.3
    none = replace(digits, train=replace(digits.train, labels=torch.full_like(half, -1)))
    (taken,) = prepare(["linear"], none, "x")
    with pytest.raises(TorchcapsError, match="no labels for a probe"):
        taken.evaluate(Pixels())


def test_metrics_report_missing_needs(digits):
    for name in ("accuracy", "mirrored", "calibration", "adversarial", "compactness"):
        (taken,) = prepare([name], digits, "digits")
        with pytest.raises(TorchcapsError, match="needs a model with classes; convnet has none"):
            taken.check(Pixels())
    two = torchcaps.data.load("multimnist:digits,copies=1")
    (taken,) = prepare(["linear"], two, "multimnist:digits")
    with pytest.raises(TorchcapsError, match="one label an image"):
        taken.check(Pixels())


def test_every_number_has_a_metric():
    for name, kind in METRICS.items():
        assert kind.values and all(metric_of(value) == name for value in kind.values)
    assert metric_of("loss") == ""


def test_custom_metric(digits):
    @dataclass
    class Ink(Metric):
        """Brightness of the images."""

        needs = ()
        power: int = 1

        def score(self, model, data, split):
            return {"ink": float((split.images / 255).pow(self.power).mean())}

    try:
        register_metric("ink", ("ink",))(Ink)
        lines = [
            PreparedMetric(m, digits, d).evaluate(Pixels())
            for m, d in map(read_metric, ("ink", "ink,power=2"))
        ]
        assert lines[0][0]["value"] > lines[1][0]["value"] > 0
    finally:
        from torchcaps.metrics import base as module

        del module.METRICS["ink"]


def test_results_are_kept_if_the_next_metric_fails(tiny_recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = start(replace(tiny_recipe, epochs=1, paper="little", table="t", row="r"))
    monkeypatch.setattr("torchcaps.metrics.probes.metric.LinearProbe.learner", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["eval", str(run.folder), "--metrics", "knn", "linear", "--record", "--debug"])
    text = (tmp_path / "results/little.jsonl").read_text()
    assert "knn_accuracy" in text and "linear_accuracy" not in text


def test_measure_writes_lines_beside_the_run(tiny_recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = start(replace(tiny_recipe, epochs=1, paper="little", table="t", row="r"))
    metrics = ["calibration", "adversarial,images=8"]
    words = ["eval", str(run.folder), "--metrics", *metrics, "--record"]
    assert main(words) == 0
    assert "pgd_guarded" in capsys.readouterr().out
    text = (tmp_path / "results/little.jsonl").read_text()
    assert '"metric": "ece"' in text and '"n": 8' in text and run.record()["run"] in text
    assert main(words) == 0
    assert "already in" in capsys.readouterr().out
    assert (tmp_path / "results/little.jsonl").read_text() == text
    assert main(["eval", str(run.folder), "--metrics", "colour"]) == 2
    assert "Unknown metric 'colour'" in capsys.readouterr().err
    assert main(["plot", "traversal,units=2", str(run.folder), "--out", "f/4.png"]) == 0
    assert (tmp_path / "f/4.png").stat().st_size > 1000
    assert main(["plot", "traversal,image=99999", str(run.folder)]) == 2


def test_an_option_that_is_given_twice_is_refused():
    with pytest.raises(TorchcapsError, match="degrees is given twice"):
        read_metric("linear:rotated:digits,degrees=30,on=rotated:digits,degrees=30")
