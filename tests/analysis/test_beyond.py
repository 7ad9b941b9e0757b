"""Calibration, outliers, attacks and what `measure` records of them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import torchcaps
from tests.conftest import TINY_CAPSNET
from torchcaps.analysis import (
    accuracy_under_attack,
    attacked,
    calibration_error,
    detected,
    draw_accuracy_under_attack,
    draw_curves,
    draw_reliability,
    outlier_auroc,
    reliability,
    strangeness,
)
from torchcaps.analysis.measure import MEASURES, METRICS, Subject, measure
from torchcaps.cli import main
from torchcaps.data import Split
from torchcaps.errors import TorchcapsError
from torchcaps.models import Output
from torchcaps.train.loop import start
from torchcaps.train.run import by_name


class Claims(nn.Module):
    """Class 0 if the first pixel is dark, else 1, with the confidence that the second says."""

    decoder = None

    def forward(self, images, reconstruct=True):
        confidence = images[:, 0, 0, 1]
        bright = images[:, 0, 0, 0] > 0.5
        lengths = torch.where(bright[:, None], torch.stack([1 - confidence, confidence], 1),
                              torch.stack([confidence, 1 - confidence], 1))  # fmt: skip
        return Output(lengths.log(), lengths)


def claims(right: list[bool], confidence: float) -> Split:
    images = torch.zeros(len(right), 1, 4, 4)
    images[:, :, 0, 1] = confidence
    return Split((images * 255).round().to(torch.uint8), (~torch.tensor(right)).long())


def test_calibration_error_is_confidence_less_accuracy():
    split = claims([True, True, True, False], 0.8)
    assert calibration_error(Claims(), split) == pytest.approx(0.05, abs=1e-3)
    mean, accuracy, count = reliability(Claims(), split)
    where = int(np.nanargmax(count))
    assert count[where] == 4 and accuracy[where] == 0.75
    assert mean[where] == pytest.approx(0.8, abs=1e-3) and np.isnan(mean[0])
    assert draw_reliability({"claims": (mean, accuracy, count)}).axes[0].get_lines()


class Sides(nn.Module):
    """Two scores: how bright the left column is, and the right one, which it half overlooks."""

    def forward(self, images, reconstruct=True):
        left, right = images[:, 0, :, 0].mean(1), images[:, 0, :, -1].mean(1)
        return Output(torch.stack([left, 0.5 * right + 0.2], 1))


def test_a_mirror_is_a_second_opinion(digits):
    images = torch.zeros(3, 1, 2, 3, dtype=torch.uint8)
    images[0, ..., 0], images[1, ..., 2], images[2, ..., 0] = 255, 255, 26
    test = Split(images, torch.tensor([0, 1, 1]))
    assert (Sides()(images / 255).logits.argmax(-1) == test.labels).all()
    # the second is the first one's mirror: the mean of what it says of both is the same, and 0
    found = MEASURES["mirrored"](Subject(Sides(), replace(digits, test=test), None))
    assert found == {"mirrored_accuracy": pytest.approx(2 / 3)}
    more = Split(torch.cat([images, images]), torch.tensor([0, 1, 1, -1, -1, -1]))
    assert MEASURES["mirrored"](Subject(Sides(), replace(digits, test=more), None)) == found
    with pytest.raises(TorchcapsError, match="label"):
        bare = replace(digits, test=more[torch.tensor([3, 4])])
        MEASURES["mirrored"](Subject(Sides(), bare, None))


class Copies(nn.Module):
    """Draws dark images well and bright ones not at all."""

    decoder = nn.Identity()

    def forward(self, images, reconstruct=True):
        logits = torch.stack([images.mean((1, 2, 3)), 1 - images.mean((1, 2, 3))], 1)
        return Output(10 * logits, reconstruction=images.clamp(max=0.5) if reconstruct else None)


def test_what_cannot_be_drawn_is_strange():
    dark = Split(torch.randint(0, 128, (20, 1, 4, 4)).to(torch.uint8), torch.zeros(20).long())
    bright = Split(torch.randint(160, 256, (20, 1, 4, 4)).to(torch.uint8), torch.zeros(20).long())
    assert outlier_auroc(Copies(), dark, bright) == 1
    assert outlier_auroc(Copies(), bright, dark) == 0
    assert strangeness(Copies(), bright, "confidence").shape == (20,)
    with pytest.raises(TorchcapsError, match="no decoder"):
        strangeness(torchcaps.create_model("convnet-modern", channels=(2,) * 7), dark)


def test_attacks_stay_within_epsilon_and_find_the_boundary():
    images = torch.full((6, 1, 4, 4), 0.45)
    images[3:] = 0.2
    labels = torch.ones(6).long()  # class 1 is darker than a half
    for kind in ("fgsm", "pgd"):
        moved = attacked(Copies(), images, labels, kind, 0.1)
        assert (moved - images).abs().max() <= 0.1 + 1e-6
        epsilons, accuracy = accuracy_under_attack(Copies(), images, labels, kind, (0.0, 0.1, 0.4))
        assert accuracy.tolist() == [1.0, 0.5, 0.0] and epsilons.tolist() == [0, 0.1, 0.4]
    assert draw_accuracy_under_attack({"pgd": (epsilons, accuracy)}).axes[0].get_lines()


def test_the_detector_turns_away_what_it_cannot_draw():
    images, labels = torch.full((4, 1, 4, 4), 0.45), torch.ones(4).long()
    clean = torch.full((10, 1, 4, 4), 0.3)
    found = detected(Copies(), images, labels, clean, "fgsm", 0.1)
    assert found.accuracy == 0 and found.guarded == 1 and found.threshold == 0


def test_measure_writes_lines_beside_the_run(tiny_recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = start(replace(tiny_recipe, epochs=1, paper="little", table="t", row="r"))
    monkeypatch.setattr("torchcaps.analysis.measure.NUM_ATTACKED", 8)
    words = ["measure", str(run.folder), "calibration", "adversarial", "--record"]
    assert main(words) == 0
    assert "pgd_guarded" in capsys.readouterr().out
    text = (tmp_path / "results/little.jsonl").read_text()
    assert '"metric": "ece"' in text and '"n": 8' in text
    lines = measure(run.folder, ["calibration", "adversarial"])
    assert {line["metric"] for line in lines} <= set(METRICS)
    assert main(["measure", str(run.folder), "colour"]) == 1
    assert "no measure 'colour'" in capsys.readouterr().err
    assert main(["traverse", str(run.folder), "--units", "2", "--out", "f/4.png"]) == 0
    assert (tmp_path / "f/4.png").stat().st_size > 1000
    assert main(["traverse", str(run.folder), "--image", "99999"]) == 1


def test_curves_of_runs_with_one_row_are_told_apart(tiny_recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runs = [
        start(replace(tiny_recipe, epochs=2, evaluate=(), row=row), tmp_path / name)
        for name, row in (("a", "same"), ("b", "same"), ("c", "other"))
    ]
    assert list(by_name(r.folder for r in runs)) == [
        f"same ({tmp_path / 'a'})", f"same ({tmp_path / 'b'})", "other",
    ]  # fmt: skip
    left, right = draw_curves(by_name(["a", "c"])).axes
    assert [len(line.get_xdata()) for line in (*left.lines, *right.lines)] == [2] * 4
    assert main(["curves", "a", "c", "--out", "f/6.png"]) == 0
    assert (tmp_path / "f/6.png").stat().st_size > 1000
    runs[0].metrics_file.unlink()
    assert main(["curves", "a"]) == 1
    assert "has ended an epoch" in capsys.readouterr().err


def test_every_measure_of_a_table_works_on_a_model_without_decoder():
    model = torchcaps.create_model("capsnet", **{**TINY_CAPSNET, "reconstruction": "none"})
    images, labels = torch.rand(4, 1, 28, 28), torch.arange(4)
    assert attacked(model, images, labels, "fgsm").shape == images.shape


def test_ties_count_half():
    images = torch.zeros(6, 1, 4, 4, dtype=torch.uint8)
    split = Split(images, torch.zeros(6).long())
    assert outlier_auroc(Copies(), split, split) == 0.5


def test_lengths_that_nothing_squashed_keep_their_order():
    from torchcaps.analysis.calibration import probabilities

    lengths = torch.tensor([[1.5, 4.0], [0.2, 0.6]])
    claimed = probabilities(Output(lengths, lengths))
    torch.testing.assert_close(claimed, torch.tensor([[0.375, 1.0], [0.2, 0.6]]))
