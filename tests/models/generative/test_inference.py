import pytest
import torch

import torchcaps
from tests.models.generative.test_model import draws, made
from torchcaps.errors import TorchcapsError
from torchcaps.metrics.base import prepare
from torchcaps.models.generative.concrete import normal_log_prob
from torchcaps.models.generative.inference import blurred, initial_layers, refine, solve_objects
from torchcaps.models.generative.search import METHODS, bounds, rendered

SIZES = {"num_caps": (3, 5), "template_size": 5, "channels": 3, "width": 8, "heads": 2, "depth": 1}


FIELDS = [{}, {"objects": "one"}, {"num_caps": (2, 3, 5)}, {"objects": "one", "frames": 3}]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_refining_raises_the_bound_of_every_image(fields, method):
    torch.manual_seed(0)
    model = torchcaps.create_model("generative", **{**SIZES, **fields}).eval()
    images = torch.rand(4, 1, 28, 28)
    found = refine(model, images, steps=6, method=method)
    assert found.curve.shape == (7, 4) and found.seconds.shape == (7,)
    seen = model.look(images)
    with torch.no_grad():
        before = bounds(model, images, model.infer(seen.views), seen.turns)
        after = bounds(model, images, found.layers, found.turns)
    torch.testing.assert_close(found.curve[0], before)
    torch.testing.assert_close(found.curve[-1], after)
    assert (after > before).all() and (found.curve.diff(dim=0) >= 0).all()
    assert all(p.requires_grad and p.grad is None for p in model.process.templates.parameters())


def test_turned_starts_are_what_the_encoder_says_put_back_upright():
    model = made()
    images = torch.rand(3, 1, 28, 28).double()
    with torch.no_grad():
        for times, (layers, turns) in enumerate(initial_layers(model, images, 4)):
            assert turns is None
            view = torch.rot90(images, times, (2, 3))
            said = torch.rot90(model.process.decode(model.infer(view)[0]), -times, (2, 3))
            torch.testing.assert_close(model.process.decode(layers[0]), said, atol=1e-6, rtol=0)
        every = [bounds(model, images, layers) for layers, _ in initial_layers(model, images, 4)]
    found = refine(model, images, 0, starts=4)
    torch.testing.assert_close(found.curve[-1], torch.stack(every).amax(0))
    with pytest.raises(TorchcapsError, match="frames"):
        refine(made(objects="one", frames=2), images, 0, starts=4)


def test_blurring_is_undone_and_kept_out_of_the_curve():
    model = made()
    images = torch.rand(3, 1, 28, 28).double()
    sharp = model.process.templates.color.detach().clone()
    with blurred(model.process.templates, 1.0):
        assert float((model.process.templates.color - sharp).detach().abs().max()) > 0.1
    assert torch.equal(model.process.templates.color, sharp)
    found = refine(model, images, 6, blur=1.0)
    assert torch.equal(model.process.templates.color, sharp)
    with torch.no_grad():
        torch.testing.assert_close(found.curve[-1], bounds(model, images, found.layers))


def test_the_renderers_jacobian_is_autograds():
    model = made(in_channels=2)
    noise = torch.randn(3, 5, 2, 3, generator=torch.Generator().manual_seed(0)).double()
    poses = (0.5 * torch.eye(2, 3) + 0.1 * noise).requires_grad_()  # none nearly singular
    presences = torch.rand(3, 5).double()
    templates = model.process.templates
    drawn, jacobian = rendered(templates, poses, presences)
    expected = templates(poses, presences)
    torch.testing.assert_close(drawn.unflatten(-1, (28, 28)), expected)
    for pixel in ((0, 14, 14), (1, 9, 17), (1, 20, 8)):
        at = (slice(None), *pixel)
        (slope,) = torch.autograd.grad(expected[at].sum(), poses, retain_graph=True)
        found = jacobian.unflatten(2, (28, 28))[at]
        torch.testing.assert_close(found, slope, rtol=1e-4, atol=1e-6)


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
        low, high = solve_objects(model, layers, iterations)
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
    lines = {x["metric"]: x for x in taken.evaluate(model)}
    assert lines["free_form_gain"]["value"] > 0 and lines["free_form_accuracy"]["n"] == 20
    assert 0 <= lines["free_form_accuracy"]["value"] <= 1
    with pytest.raises(TorchcapsError, match="needs a model with parts"):
        taken.check(torchcaps.create_model("vae"))
