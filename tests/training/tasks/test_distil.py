"""A network that is taught by the one it begins with: whose answer counts, and that it stays."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from torchcaps.data import Batch
from torchcaps.errors import TorchcapsError
from torchcaps.models.registry import create_model
from torchcaps.training import checkpoint
from torchcaps.training.loop import resume, start
from torchcaps.training.run import Run
from torchcaps.training.setup import set_up
from torchcaps.training.state import Training
from torchcaps.training.tasks import Classify, Distil, make_task


@pytest.fixture
def taught(tiny_recipe, tmp_path):
    """A run of two epochs that goes on from one of two epochs."""
    plain = replace(tiny_recipe, task=Classify(loss="cross_entropy", reconstruction=0))
    first = start(plain, tmp_path / "first")
    return replace(
        plain, task=Distil(loss="cross_entropy", reconstruction=0), start_from=str(first.folder)
    )


def test_the_loss_by_hand():
    model = create_model("convnet-avg", image_size=28, channels=(4, 8), strides=(1, 2))
    task = make_task(model, Distil(loss="cross_entropy", taught=0.75, smoothing=0.1))
    with torch.no_grad():
        for parameter in task.teacher.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    batch = Batch(torch.rand(5, 1, 28, 28), torch.arange(5))
    said = [
        task.teacher(images).logits.softmax(1) for images in (batch.images, batch.images.flip(3))
    ]
    logits = model(batch.images).logits
    told = F.cross_entropy(logits, batch.labels, label_smoothing=0.1)
    learned = F.cross_entropy(logits, (said[0] + said[1]) / 2)
    torch.testing.assert_close(task(batch)["loss"], 0.25 * told + 0.75 * learned)
    alone = make_task(model, Distil(loss="cross_entropy", taught=1.0, mirror=False))
    alone.teacher.load_state_dict(task.teacher.state_dict())
    torch.testing.assert_close(alone(batch)["loss"], F.cross_entropy(logits, said[0]))
    torch.testing.assert_close(task.eval()(batch)["loss"], told)


def test_the_teachers_statistics_stay_and_half_precision_works():
    model = create_model("convnet-modern", image_size=28, channels=(4,) * 7)
    task = make_task(model, Distil(loss="spread")).train()
    assert model.training and not task.teacher.training
    before = {name: t.clone() for name, t in task.teacher.named_buffers()}
    assert any("running_mean" in name for name in before)
    batch = Batch(torch.rand(5, 1, 28, 28), torch.arange(5))
    with torch.autocast("cpu", torch.bfloat16):
        loss = task(batch)["loss"]
    assert loss.dtype == torch.float32 and bool(loss.isfinite())
    after = dict(task.teacher.named_buffers())
    assert all(torch.equal(after[name], t) for name, t in before.items())
    own = dict(model.named_buffers())
    assert any(not torch.equal(own[name], t) for name, t in before.items())


def test_the_teacher_is_what_the_run_began_with_and_stays(taught, tmp_path):
    whole = start(taught, tmp_path / "whole")
    first = load_file(Run(tmp_path / "first").model_folder / "model.safetensors")
    kept = checkpoint.load_last(whole.folder / "checkpoints")[1]
    moved = load_file(whole.model_folder / "model.safetensors")
    assert not any(name.startswith("teacher") for name in moved)
    for name, tensor in first.items():
        assert torch.equal(kept[f"teacher.{name}"], tensor), name
    assert any(not torch.equal(moved[name], tensor) for name, tensor in first.items())


def test_a_stopped_run_keeps_its_teacher(taught, tmp_path):
    whole = start(taught, tmp_path / "whole")
    resolved, parts = set_up(taught)
    training = Training(resolved, parts, Run.create(resolved, tmp_path / "cut"))
    for _ in range(9):
        training.step()
    training.save()
    one, other = (
        load_file(run.model_folder / "model.safetensors")
        for run in (whole, resume(tmp_path / "cut"))
    )
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_what_it_needs_is_said(taught, tmp_path):
    with pytest.raises(TorchcapsError, match="add --from RUN"):
        start(replace(taught, start_from=""), tmp_path / "a")
    nobody = replace(taught, task=replace(taught.task, taught=0.0))
    with pytest.raises(TorchcapsError, match="taught must be above 0 and at most 1"):
        start(nobody, tmp_path / "b")
    other = replace(taught, model=replace(taught.model, class_pose_dim=5), start_partly=True)
    with pytest.raises(TorchcapsError, match="needs all weights of the model, and .* lacks"):
        start(other, tmp_path / "c")
