"""The learning-rate range test: a usual rate for a usual model, and nothing written."""

import json
import math

import pytest

from torchcaps.cli import main
from torchcaps.errors import TorchcapsError
from torchcaps.training.lr_range import range_test, suggested


def test_the_suggestion_is_where_the_loss_falls_fastest():
    rates = [10.0**n for n in range(-7, 1)]
    losses = [2.3, 2.3, 2.29, 2.0, 1.2, 1.0, 3.0, 9.0]
    assert suggested(rates, losses) == 1e-4  # from 2.29 to 1.2 around it
    with pytest.raises(TorchcapsError, match="falls at no learning rate"):
        suggested(rates, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])


def test_the_suggestion_for_a_small_capsnet_is_a_usual_rate(tiny_recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = range_test(tiny_recipe, steps=60)
    assert 1e-4 < found.suggestion < 0.3 and all(map(math.isfinite, found.losses))
    assert found == range_test(tiny_recipe, steps=60)
    assert not list(tmp_path.iterdir())


def test_train_prints_the_suggestion(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(range_test, "__kwdefaults__", {"steps": 20})
    words = ["train", "convnet-avg-small", "--data", "digits", "--find-lr"]
    assert main(words) == 0
    assert "suggestion: --optimizer.lr" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rates"]) == 20
    assert not list(tmp_path.iterdir())
