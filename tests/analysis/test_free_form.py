import pytest
import torch

import torchcaps
from tests.models.test_generative import draws, made
from torchcaps.analysis.free_form import bounds, parents, refine
from torchcaps.analysis.measures import prepare
from torchcaps.errors import TorchcapsError
from torchcaps.losses.concrete import normal_log_prob

SIZES = {"num_caps": (3, 5), "template_size": 5, "channels": 3, "width": 8, "heads": 2, "depth": 1}


@pytest.mark.parametrize("fields", [{}, {"objects": "one"}, {"num_caps": (2, 3, 5)}], ids=str)
def test_refining_raises_the_bound_of_every_image(fields):
    torch.manual_seed(0)
    model = torchcaps.create_model("generative", **{**SIZES, **fields}).eval()
    images = torch.rand(4, 1, 28, 28)
    layers, curve = refine(model, images, steps=8)
    assert curve.shape == (9, 4)
    before = bounds(model, images, model.infer(images))
    torch.testing.assert_close(curve[0], before.detach())
    after = bounds(model, images, layers)
    torch.testing.assert_close(after, curve.amax(0))
    assert (after > before).all()
    assert not any(p.grad is not None for p in model.parameters())


def test_poses_in_closed_form_have_no_gradient_left():
    model = made()
    _, (low, _) = draws(model, 4)
    (arrangement,) = model.process.arrangements
    shares = torch.rand(4, 5, 3).double()
    poses = arrangement.best_poses(shares, low.poses).detach().requires_grad_()
    apart = (low.poses[:, :, None] - arrangement.votes(poses)).square().sum((-2, -1))
    fit = (shares * apart / arrangement.std[:, 1:].square()).sum() / 2
    whole = fit + (poses - torch.eye(2, 3)).square().sum() / 2
    (gradient,) = torch.autograd.grad(whole, poses)
    assert float(gradient.abs().max()) < 1e-9 * float(whole.detach())


def test_objects_in_closed_form_explain_parts_better_each_time():
    model = made()
    _, layers = draws(model, 4)
    (arrangement,) = model.process.arrangements
    heights = []
    for iterations in range(6):
        low, high = parents(model, layers, iterations)
        said = arrangement(high.logits, high.poses, low.logits, low.poses).logsumexp(-1).sum(1)
        prior = normal_log_prob(high.poses, torch.eye(2, 3), 1.0).sum((1, 2, 3))
        heights.append((said + prior).detach())
    steps = torch.stack(heights).diff(dim=0)
    assert (steps > -1e-9).all() and (steps[0] > 1).all()


def test_free_form_is_a_measure(digits):
    model = torchcaps.create_model("generative", **SIZES).eval()
    few = torchcaps.data.Dataset("few", *(digits.test[slice(0, 60)],) * 3, digits.classes)
    (taken,) = prepare(["free-form,steps=2,scored=20"], few, "few")
    taken.check(model)
    lines = {x["metric"]: x for x in taken.take(model)}
    assert lines["free_form_gain"]["value"] > 0 and lines["free_form_accuracy"]["n"] == 20
    assert 0 <= lines["free_form_accuracy"]["value"] <= 1
    with pytest.raises(TorchcapsError, match="generative capsules"):
        taken.check(torchcaps.create_model("vae"))
