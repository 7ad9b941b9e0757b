import json

import numpy as np
import pytest
import torch
from torch import nn

import torchcaps
from torchcaps.analysis import get_plot
from torchcaps.data import Split
from torchcaps.metrics.calibration import (
    FEWEST,
    calibration_error,
    fit_temperature,
    learned_temperature,
    reliability,
)
from torchcaps.models import Output


class Claims(nn.Module):
    """Class 0 if the first pixel is dark, else 1; the second pixel is the confidence."""

    decoder = None
    provides = frozenset({"logits"})
    temperature = None

    def with_features(self, split):
        return split

    def encode(self, images):
        confidence = images[:, 0, 0, 1]
        bright = images[:, 0, 0, 0] > 0.5
        lengths = torch.where(bright[:, None], torch.stack([1 - confidence, confidence], 1),
                              torch.stack([confidence, 1 - confidence], 1))  # fmt: skip
        return Output(lengths.log(), lengths)


def claims(right: list[bool], confidence: float) -> Split:
    images = torch.zeros(len(right), 1, 4, 4)
    images[:, :, 0, 1] = confidence
    return Split((images * 255).round().to(torch.uint8), (~torch.tensor(right)).long())


def test_calibration_error_is_confidence_minus_accuracy():
    split = claims([True, True, True, False], 0.8)
    assert calibration_error(Claims(), split) == pytest.approx(0.05, abs=1e-3)
    mean, accuracy, count = reliability(Claims(), split)
    where = int(np.nanargmax(count))
    assert count[where] == 4 and accuracy[where] == 0.75
    assert mean[where] == pytest.approx(0.8, abs=1e-3) and np.isnan(mean[0])
    assert (
        get_plot("reliability")
        .figure({"claims": {"confidence": mean, "accuracy": accuracy}})
        .axes[0]
        .get_lines()
    )


def test_bins_of_a_fifteenth():
    """0.65 right and 0.69 wrong are in two bins of 15, in one of 10: 0.35 / 2 + 0.69 / 2."""
    low, high = round(0.65 * 255) / 255, round(0.69 * 255) / 255
    one, two = claims([True], low), claims([False], high)
    split = Split(torch.cat([one.images, two.images]), torch.cat([one.labels, two.labels]))
    assert calibration_error(Claims(), split) == pytest.approx(((1 - low) + high) / 2, abs=1e-6)
    mean, accuracy, count = reliability(Claims(), split)
    assert len(count) == 15 and count.nonzero()[0].tolist() == [9, 10]
    assert mean[9:11].tolist() == pytest.approx([low, high])
    assert accuracy[9:11].tolist() == [1.0, 0.0]


def sampled(scale: float, count: int = 4000) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits that claim too much or too little: labels are drawn at the logits divided by scale."""
    logits = scale * 2 * torch.randn(count, 5)
    return logits, torch.multinomial((logits / scale).softmax(1), 1)[:, 0]


@pytest.mark.parametrize("scale", [0.05, 1.0, 30.0])
def test_the_temperature_is_the_scale_of_the_logits(scale):
    assert fit_temperature(*sampled(scale)) == pytest.approx(scale, rel=0.08)


def test_the_temperature_has_the_lowest_cross_entropy():
    """Of the smoothed labels, on a fine grid of temperatures."""
    logits, labels = sampled(3.0, 40)
    target = torch.full((40, 5), 1 / 42 / 4).scatter(1, labels[:, None], 41 / 42)
    grid = torch.linspace(0.5, 20, 4000)
    losses = torch.stack([-(target * (logits / t).log_softmax(1)).sum(1).mean() for t in grid])
    assert fit_temperature(logits, labels) == pytest.approx(float(grid[losses.argmin()]), abs=0.01)


def test_validation_without_errors_has_a_finite_temperature():
    """N right answers make the mean confidence (N+1)/(N+2), not one."""
    logits = 7.0 * torch.eye(4).repeat(5, 1)
    temperature = fit_temperature(logits, torch.arange(4).repeat(5))
    assert float((logits / temperature).softmax(1).amax(1).mean()) == pytest.approx(21 / 22)


def test_a_model_worse_than_chance_claims_nothing():
    logits = torch.eye(4).repeat(5, 1)
    temperature = fit_temperature(logits, torch.arange(20) % 4 + 1 - 4 * (torch.arange(20) % 4 > 2))
    torch.testing.assert_close((logits / temperature).softmax(1), torch.full((20, 4), 0.25))


def test_too_few_or_several_labels_have_no_temperature():
    split = claims([True, False] * (FEWEST // 2), 0.8)
    assert learned_temperature(Claims(), split) is not None
    assert learned_temperature(Claims(), split[1:]) is None
    pairs = Split(split.images, split.labels[:, None].expand(-1, 2))
    assert learned_temperature(Claims(), pairs) is None


def test_a_run_learns_its_temperature_on_validation_alone(digits, tmp_path):
    instance = torchcaps.create_model("capsnet-small", channels=8, num_types=2, hidden=(16,))
    run = torchcaps.fit(
        instance, "digits", epochs=2, quiet=True, out=tmp_path / "run", metrics=("calibration",)
    )
    assert instance.temperature == run.model.temperature
    model, config = run.model, json.loads((run.folder / "model" / "config.json").read_text())
    assert model.temperature == config["temperature"]
    assert model.temperature == pytest.approx(learned_temperature(model, digits.val))
    numbers = {r["metric"]: r["value"] for r in run.results if r["split"] == "test"}
    assert numbers["temperature"] == model.temperature
    assert numbers["calibrated_ece"] < 0.09 and numbers["calibrated_ece"] < numbers["ece"] / 2
    assert numbers["calibrated_ece"] == calibration_error(model, digits.test, calibrated=True)
    image = digits.test.images[:1]
    logits = model(image / 255).logits.detach()
    expected = (logits / model.temperature).softmax(1).max()
    assert model.predict(image)[0][0].probability == pytest.approx(float(expected))
    model.reset_classifier(3)
    assert model.temperature is None


@pytest.mark.parametrize("value", [0, -1.0, "warm", True])
def test_a_damaged_temperature_is_an_error(value, tmp_path):
    torchcaps.create_model("convnet-avg-small").save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "temperature": value}))
    with pytest.raises(torchcaps.errors.TorchcapsError, match="no positive number"):
        torchcaps.load(tmp_path)
