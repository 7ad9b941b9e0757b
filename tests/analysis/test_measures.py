"""Measures by name: the grammar, learning apart from scoring, what they need of a model."""

from dataclasses import dataclass, replace

import pytest
import torch

import torchcaps
from torchcaps.analysis.measures import (
    Measure,
    Taken,
    measure_of,
    measures,
    prepare,
    read_measure,
    register_measure,
)
from torchcaps.cli import main
from torchcaps.errors import TorchcapsError
from torchcaps.models import CapsuleModel
from torchcaps.train.loop import start


class Pixels(CapsuleModel):
    """A model that makes nothing of an image."""

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
def test_options_that_a_measure_does_not_know_are_the_datas(text, name, data, options):
    measure, found = read_measure(text)
    assert measure.name == name and found == data
    assert {key: getattr(measure, key) for key in options} == options


def test_a_probe_learns_from_one_split_and_is_scored_on_others(digits):
    """With pixels for features: a digit's label is found, one that was drawn by lot is not."""
    lot = digits.val.labels[torch.randperm(len(digits.val))]
    wrong = replace(digits, val=replace(digits.val, labels=lot))
    for name, least in (("linear", 0.7), ("knn", 0.8)):
        (taken,) = prepare([f"{name},limit=3000"], digits, "digits")
        (line,) = taken.take(Pixels(), "val")
        assert line["value"] > least and line["metric"] == f"{name}_accuracy"
        assert (line["fit"], line["n"], line["split"]) == ("train", 500, "val")
        assert replace(taken, data=wrong).take(Pixels(), "val")[0]["value"] < 0.25
    (few,) = prepare(["linear,features=mean"], digits, "digits")
    assert few.take(Pixels())[0]["value"] < 0.4


def test_a_probe_learns_once(digits):
    (taken,) = prepare(["linear,limit=100"], digits, "digits")
    taken.take(Pixels(), "val")
    learned = taken.measure.learned
    taken.take(Pixels(), "test")
    assert taken.measure.learned is learned
    assert not taken.anew(torch.device("cpu")).learned


def test_a_probe_may_learn_from_the_split_that_it_is_scored_on(digits):
    """As some papers do; the line says so."""
    (own,) = prepare(["knn,fit=test"], digits, "digits")
    (line,) = own.take(Pixels())
    assert line["fit"] == "test" and line["value"] > 0.98


def test_probes_take_drawn_images_and_leave_unlabelled_ones_out(digits):
    drawn = torchcaps.data.load("translated:digits,size=28")
    (taken,) = prepare(["linear,limit=100"], drawn, "x")
    assert 0 < taken.take(Pixels())[0]["value"] < 1
    half = digits.train.labels.clone()
    half[::2] = -1
    some = replace(digits, train=replace(digits.train, labels=half))
    (taken,) = prepare(["linear,limit=100"], some, "x")
    assert taken.take(Pixels())[0]["value"] > 0.3
    none = replace(digits, train=replace(digits.train, labels=torch.full_like(half, -1)))
    (taken,) = prepare(["linear"], none, "x")
    with pytest.raises(TorchcapsError, match="no labels for a probe"):
        taken.take(Pixels())


def test_a_measure_says_what_a_model_lacks(digits):
    for name in ("accuracy", "mirrored", "calibration", "adversarial", "compactness"):
        (taken,) = prepare([name], digits, "digits")
        with pytest.raises(TorchcapsError, match="with classes; this convnet has none"):
            taken.check(Pixels())
    two = torchcaps.data.load("multimnist:digits,copies=1")
    (taken,) = prepare(["linear"], two, "multimnist:digits")
    with pytest.raises(TorchcapsError, match="one label an image"):
        taken.check(Pixels())


def test_every_metric_has_its_measure():
    for name, kind in measures().items():
        assert kind.metrics and all(measure_of(metric) == name for metric in kind.metrics)
    assert measure_of("loss") == ""


def test_a_measure_of_ones_own(digits):
    @dataclass
    class Ink(Measure):
        """How bright the images are."""

        needs = ()
        power: int = 1

        def score(self, model, data, split):
            return {"ink": float((split.images / 255).pow(self.power).mean())}

    try:
        register_measure("ink", ("ink",))(Ink)
        lines = [
            Taken(m, digits, d).take(Pixels()) for m, d in map(read_measure, ("ink", "ink,power=2"))
        ]
        assert lines[0][0]["value"] > lines[1][0]["value"] > 0
    finally:
        from torchcaps.analysis import measures as module

        del module._MEASURES["ink"]


def test_what_was_measured_stays_when_the_next_fails(tiny_recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = start(replace(tiny_recipe, epochs=1, paper="little", table="t", row="r"))
    monkeypatch.setattr("torchcaps.analysis.probing.LinearProbe.learner", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["measure", str(run.folder), "knn", "linear", "--record", "--debug"])
    text = (tmp_path / "results/little.jsonl").read_text()
    assert "knn_accuracy" in text and "linear_accuracy" not in text


def test_measure_writes_lines_beside_the_run(tiny_recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = start(replace(tiny_recipe, epochs=1, paper="little", table="t", row="r"))
    words = ["measure", str(run.folder), "calibration", "adversarial,images=8", "--record"]
    assert main(words) == 0
    assert "pgd_guarded" in capsys.readouterr().out
    text = (tmp_path / "results/little.jsonl").read_text()
    assert '"metric": "ece"' in text and '"n": 8' in text and run.record()["run"] in text
    assert main(words) == 0
    assert "already in" in capsys.readouterr().out
    assert (tmp_path / "results/little.jsonl").read_text() == text
    assert main(["measure", str(run.folder), "colour"]) == 2
    assert "no measure 'colour'" in capsys.readouterr().err
    assert main(["traverse", str(run.folder), "--units", "2", "--out", "f/4.png"]) == 0
    assert (tmp_path / "f/4.png").stat().st_size > 1000
    assert main(["traverse", str(run.folder), "--image", "99999"]) == 2


def test_an_option_that_is_given_twice_is_refused():
    with pytest.raises(TorchcapsError, match="degrees is given twice"):
        read_measure("linear:rotated:digits,degrees=30,on=rotated:digits,degrees=30")
