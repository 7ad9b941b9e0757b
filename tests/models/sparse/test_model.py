"""Sparse capsules: printed sizes, masks that mask, a stack, every routing; state that resumes."""

import socket
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

import torchcaps
from torchcaps.cli import main
from torchcaps.data import Batch
from torchcaps.errors import TorchcapsError
from torchcaps.layers.routers import ROUTERS
from torchcaps.models.registry import model_config
from torchcaps.training import checkpoint
from torchcaps.training.loop import resume, start
from torchcaps.training.recipe import OptimizerSpec, ScheduleSpec
from torchcaps.training.run import Run
from torchcaps.training.setup import set_up
from torchcaps.training.state import Training
from torchcaps.training.tasks import Sparse, make_task

TINY = {"backbone": "norm", "num_types": 2, "hidden": (16,), "latent_pose_dim": 4, "num_caps": (5,)}


@pytest.mark.parametrize(("size", "count"), [(40, 17_064_000), (28, 9_149_712)])
def test_parameters_are_the_papers(size, count):
    with torch.device("meta"):
        assert torchcaps.create_model("sparse", image_size=size).num_parameters == count


def test_the_start_is_the_authors():
    model = torchcaps.create_model("sparse", channels=16)
    assert model.primary.scale == 1 / 32
    for name, std in (("stem.0", 0.05), ("primary.conv", 0.1), ("latent.0", 0.1)):
        weight = model.get_parameter(f"{name}.weight")
        assert float(weight.detach().abs().max()) <= 2 * std
        assert float(weight.detach().std()) == pytest.approx(0.88 * std, rel=0.1)
    biases = [p for n, p in model.named_parameters() if n.endswith("bias")]
    assert len(biases) == 6 and all((b == 0.1).all() for b in biases)


def test_the_decoder_sees_what_the_mask_leaves():
    model = torchcaps.create_model("sparse", **TINY).eval()
    images = torch.rand(3, 1, 28, 28)
    output = model(images)
    mask = output.rankings[-1].mask
    assert torch.equal(output.decoder_input, output.capsules * mask[..., None])
    assert torch.equal(output.reconstruction, model.decode(output.decoder_input))
    found = model.representations(images)
    assert torch.equal(found["unmasked"], output.capsules.flatten(1))
    assert torch.equal(found["masked"], output.decoder_input.flatten(1))
    dense = torchcaps.create_model("sparse", **{**TINY, "mask": "none"}).eval()
    dense.load_state_dict(model.state_dict())
    assert torch.equal(dense(images).decoder_input, dense(images).capsules)


def test_no_gradient_goes_through_the_mask():
    model = torchcaps.create_model("sparse", **TINY, mask="one-hot")
    output = model(torch.rand(2, 1, 28, 28))
    assert not any(t.requires_grad for t in output.rankings[0])
    output.reconstruction.sum().backward()
    weight = model.latent[0].weight.grad
    first = set(output.rankings[0].rank.argmin(1).tolist())
    touched = {j for j in range(5) if weight[:, j].abs().sum() > 0}
    assert first <= touched


@pytest.mark.parametrize("routing", ["none", *sorted(ROUTERS)])
def test_every_routing_can_carry_a_mask(routing):
    model = torchcaps.create_model("sparse", **TINY, routing=routing, num_iters=2)
    output = model(torch.rand(2, 1, 28, 28))
    assert output.rankings[0].rank.sort(1).values.tolist() == [[0, 1, 2, 3, 4]] * 2
    output.reconstruction.sum().backward()


def test_a_stack_has_a_mask_in_each_layer():
    model = torchcaps.create_model("sparse", **{**TINY, "num_caps": (7, 3)}).eval()
    output = model(torch.rand(2, 1, 28, 28), coupling=True)
    assert [r.mask.shape[1] for r in output.rankings] == [7, 3]
    assert output.layers[2].coupling.shape == (2, 7, 3)
    masked = output.layers[1].poses * output.rankings[0].mask[..., None]
    again = model.latent[1](masked)
    torch.testing.assert_close(again.poses, output.layers[2].poses)
    with pytest.raises(TorchcapsError, match="at least one layer"):
        torchcaps.create_model("sparse", **{**TINY, "num_caps": ()})


def test_boosts_can_count_in_routing():
    model = torchcaps.create_model("sparse", **TINY, boost_in_routing=True).eval()
    images = torch.rand(3, 1, 28, 28)
    before = model(images).capsules
    model.masks[0].boost[2] = 5.0
    after = model(images).capsules
    assert not torch.allclose(before[:, 2], after[:, 2], atol=1e-4)
    with pytest.raises(TorchcapsError, match="dynamic"):
        torchcaps.create_model("sparse", **TINY, boost_in_routing=True, routing="em")


def test_capsules_in_a_frame_do_not_see_a_shift(digits):
    model = torchcaps.create_model("sparse", **TINY, image_size=40, frame=28).eval()
    images = torch.nn.functional.pad(digits.test.images[:6].float() / 255, (6, 6, 6, 6))
    moved = torch.roll(images, (3, -4), (2, 3))
    one, two = model(images), model(moved)
    torch.testing.assert_close(one.capsules, two.capsules, atol=1e-2, rtol=0)
    shift = torch.tensor([-4.0, 3.0]).expand(6, 2)
    torch.testing.assert_close(two.centre - one.centre, shift, atol=2e-2, rtol=0)
    back = torch.roll(two.reconstruction, (-3, 4), (2, 3))
    inside = (slice(None), slice(None), slice(6, 34), slice(6, 34))
    torch.testing.assert_close(back[inside], one.reconstruction[inside], atol=2e-2, rtol=0)


@pytest.fixture
def recipe(tiny_recipe):
    return replace(
        tiny_recipe, steps=24, validate_every=12, batch_size=64, task=Sparse(period=5),
        model=model_config("sparse", **TINY), optimizer=OptimizerSpec(kind="adam", lr=1e-2),
        schedule=ScheduleSpec(kind="exponential", gamma=0.9, period=10, final=0.1),
    )  # fmt: skip


def masks(run):
    weights = checkpoint.load_last(run.checkpoints)[1]
    return {n: t for n, t in weights.items() if "masks" in n}


def test_boosts_and_frequencies_are_state(recipe, tmp_path):
    whole = start(recipe, tmp_path / "whole")
    found = masks(whole)
    assert set(found) == {"model.masks.0.boost", "model.masks.0.frequency"}
    assert float(found["model.masks.0.frequency"].sum()) == pytest.approx(1)
    assert (found["model.masks.0.boost"] > 1).any()
    assert "val_first_entropy" in whole.metrics[0] and "train_first.0" not in whole.metrics[0]
    resolved, parts = set_up(recipe)
    training = Training(resolved, parts, Run.create(resolved, tmp_path / "cut"))
    for _ in range(7):
        training.step()
    training.save()
    cut = resume(tmp_path / "cut")
    assert all(torch.equal(t, masks(cut)[n]) for n, t in found.items())
    one, other = (load_file(r.model_folder / "model.safetensors") for r in (whole, cut))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_parts_of_a_batch_count_as_one_update(recipe, tmp_path):
    """At a rate of zero, so that rounding of the weights does not change who is first."""
    plain = model_config(
        "sparse", **{**TINY, "backbone": "conv", "channels": 4}
    )  # no batch statistics
    still = replace(recipe, model=plain, optimizer=OptimizerSpec(kind="adam", lr=0.0))
    parts = replace(still, optimizer=OptimizerSpec(kind="adam", lr=0.0, accumulate=4))
    one, other = start(still, tmp_path / "one"), start(parts, tmp_path / "other")
    assert all(torch.equal(t, masks(other)[n]) for n, t in masks(one).items())


@pytest.mark.slow
def test_two_processes_count_as_one(tmp_path):
    """At a rate of zero, for the same reason."""
    words = [
        "train", "sparse/table1/sparse", "--steps", "12", "--validate-every", "12",
        "--batch-size", "64", "--data.name", "digits", "--metrics",
        "--model.channels", "4", "--model.num-types", "2", "--model.hidden", "16",
        "--optimizer.lr", "0", "--task.period", "5", "--hardware.precision", "fp32",
    ]  # fmt: skip
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    pair = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", port]
    pair += ["-m", "torchcaps.cli", *words, "--hardware.devices", "2", "--hardware.strategy", "ddp"]
    command = [sys.executable, *pair, "--out", str(tmp_path / "two")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert main([*words, "--out", str(tmp_path / "one")]) == 0
    one, two = (masks(Run(tmp_path / name)) for name in ("one", "two"))
    assert all(torch.equal(t, two[n]) for n, t in one.items())
    assert (one["model.masks.0.boost"] > 1).any()


def test_boosts_change_after_so_many_updates_and_not_between():
    task = make_task(torchcaps.create_model("sparse", **TINY), Sparse(period=3))
    boost, changed = task.model.masks[0].boost, []
    for step in range(9):
        before = boost.clone()
        task.after_step(step, {"first.0": torch.tensor([1.0, 0, 0, 0, 0])})
        changed.append(not torch.equal(boost, before))
    assert changed == [False, False, True] * 3


def test_a_dense_control_is_counted_and_not_boosted(recipe, tmp_path):
    run = start(replace(recipe, model=replace(recipe.model, mask="none")), tmp_path / "run")
    found = masks(run)
    assert (found["model.masks.0.boost"] == 1).all() and found["model.masks.0.frequency"].any()


def test_evaluation_changes_nothing(recipe, digits):
    task = make_task(torchcaps.create_model("sparse", **TINY), Sparse()).eval()
    before = {n: t.clone() for n, t in task.state_dict().items()}
    task.evaluate(digits.val[slice(0, 50)])
    task(Batch(torch.rand(4, 1, 28, 28), torch.zeros(4).long()))
    assert all(torch.equal(t, before[n]) for n, t in task.state_dict().items())
    with pytest.raises(TorchcapsError, match="needs a model with ranked capsules"):
        make_task(torchcaps.create_model("convnet-avg-small"), Sparse()).check(digits, 0.0)
