"""What must be the same on a GPU; skipped where there is none."""

import signal
from dataclasses import replace

import pytest
import torch

from torchcaps import data
from torchcaps.data import Augment, Batch, Loader
from torchcaps.errors import Interrupted
from torchcaps.functional import counter_uniform
from torchcaps.training.loop import resume, start
from torchcaps.training.recipe import HardwareSpec
from torchcaps.training.state import Training

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_draws_are_the_same_bits():
    counter = torch.randint(0, 2**62, (100_000,))
    assert torch.equal(counter_uniform(7, counter, 5), counter_uniform(7, counter.cuda(), 5).cpu())


@pytest.mark.parametrize("name", ["translated:digits", "multimnist:digits", "affnist-like:digits"])
def test_streams_are_the_same_images(name):
    loaded = data.load(name)
    ours, theirs = Loader(loaded, 512, seed=3), Loader(loaded.to("cuda"), 512, seed=3)
    for step in (0, 9):
        a, b = ours.batch(step), theirs.batch(step)
        assert torch.equal(a.labels, b.labels.cpu())
        torch.testing.assert_close(a.images, b.images.cpu(), atol=1e-4, rtol=0)


def test_augmentations_are_the_same():
    images = torch.rand(64, 3, 32, 32)
    chain = Augment(
        ("crop:4", "flip", "affine:20", "color-jitter:0.3,hue=0.1", "erase", "resized-crop")
    )
    number = torch.arange(64)
    here = chain(Batch(images, number), 1, number).images
    there = chain(Batch(images.cuda(), number.cuda()), 1, number.cuda()).images
    assert ((here - there.cpu()).abs() > 1e-3).float().mean() < 1e-3


@pytest.mark.parametrize("compile", ["none", "default", "graphs"])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_training_on_a_gpu_follows_the_cpu(tiny_recipe, tmp_path, compile, precision):
    large = replace(tiny_recipe, batch_size=200, data=replace(tiny_recipe.data, per_class=0))
    cpu = start(replace(large, hardware=HardwareSpec(accelerator="cpu")), tmp_path / "cpu")
    fast = HardwareSpec(accelerator="cuda", precision=precision, compile=compile)
    gpu = start(replace(large, hardware=fast), tmp_path / "gpu")
    for a, b in zip(cpu.metrics, gpu.metrics, strict=True):
        assert b["train_loss"] == pytest.approx(a["train_loss"], rel=0.03)


def test_a_stopped_run_goes_on(tiny_recipe, tmp_path, monkeypatch):
    recipe = replace(tiny_recipe, hardware=HardwareSpec(accelerator="cuda"))
    whole = start(recipe, tmp_path / "whole")
    original = Training.step

    def stopping(self):
        original(self)
        if self.state.step == 13:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Training, "step", stopping)
    with pytest.raises(Interrupted):
        start(recipe, tmp_path / "stopped")
    monkeypatch.setattr(Training, "step", original)
    run = resume(tmp_path / "stopped")
    assert run.metrics[-1]["train_loss"] == pytest.approx(whole.metrics[-1]["train_loss"], rel=1e-3)
