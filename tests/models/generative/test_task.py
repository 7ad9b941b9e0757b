"""What helps objects at first: a soft choice, a bonus for use, seeds; and their clock."""

import signal
from dataclasses import replace

import pytest
import torch

from torchcaps.errors import Interrupted, TorchcapsError
from torchcaps.models.generative.task import softened
from torchcaps.models.registry import model_config
from torchcaps.training.loop import resume, start
from torchcaps.training.recipe import DataSpec, OptimizerSpec, Recipe
from torchcaps.training.state import Training
from torchcaps.training.tasks import Elbo

HELPED = Elbo(usage=3.0, usage_steps=4, soft=5.0, soft_steps=8, seed_at=3)
SIZES = {"num_caps": (3, 4), "template_size": 4, "channels": 4, "frames": 2, "test_frames": 2}


def recipe(task=HELPED, **fields):
    return Recipe(
        name="helped",
        steps=8,
        validate_every=4,
        batch_size=20,
        data=DataSpec(name="digits"),
        model=model_config("generative-framed", **{**SIZES, **fields}),
        task=task,
        optimizer=OptimizerSpec(kind="adam", lr=1e-3, rates=("process=10",)),
        choose="last",
    )


def test_a_soft_choice_bounds_the_sum_from_below():
    joint = 5 * torch.randn(7, 4, generator=torch.Generator().manual_seed(0)).double()
    exact, choice = softened(joint, torch.tensor(1.0).double())
    torch.testing.assert_close(exact, joint.logsumexp(1))
    torch.testing.assert_close(choice, joint.softmax(1))
    soft, even = softened(joint, torch.tensor(1e6).double())
    assert (soft < exact).all()
    torch.testing.assert_close(even, torch.full_like(even, 0.25), atol=1e-4, rtol=0)


def test_help_ends_and_objects_come_with_the_seeds(tmp_path, few_digits):
    run = start(recipe(), tmp_path / "run")
    first, last = run.metrics
    assert first["train_usage"] > 0 and last["train_usage"] == 0
    assert float(torch.tensor(first["train_parts"]).abs()) > 0
    plain = start(recipe(Elbo()), tmp_path / "plain")
    assert "train_usage" not in plain.metrics[0]


def test_a_stopped_run_is_seeded_once(tmp_path, monkeypatch, few_digits):
    whole = start(recipe(), tmp_path / "whole")
    original = Training.step
    for stop in (2, 3, 5):

        def stopping(self, stop=stop):
            original(self)
            if self.state.step == stop:
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(Training, "step", stopping)
        with pytest.raises(Interrupted):
            start(recipe(), tmp_path / f"at{stop}")
        monkeypatch.setattr(Training, "step", original)
        run = resume(tmp_path / f"at{stop}")
        assert run.metrics[-1]["val_loss"] == whole.metrics[-1]["val_loss"]


@pytest.mark.parametrize(
    "wrong, said",
    [
        (recipe(objects="many", placed="encoded"), "objects one"),
        (recipe(replace(HELPED, soft=0.5)), "soft must be at least 1"),
        (recipe(objects="many"), "solved"),
    ],
    ids=["many", "soft", "solved"],
)
def test_what_cannot_be_helped_is_said(wrong, said, tmp_path):
    with pytest.raises(TorchcapsError, match=said):
        start(wrong, tmp_path / "wrong")
