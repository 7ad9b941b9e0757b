"""Concurrent routing against a loop that leaves nothing out; fixed points; parameter counts."""

import pytest
import torch
from torch.nn import functional as F

import torchcaps
from torchcaps.errors import TorchcapsError
from torchcaps.layers import Capsules, ConvCaps
from torchcaps.layers.stems import make_backbone
from torchcaps.routing import Solver
from torchcaps.routing.inverted import inverted_attention_step_reference
from torchcaps.routing.window import unfold

TINY = {
    "in_channels": 1, "image_size": 14, "num_classes": 3, "channels": 4, "num_types": 2,
    "pose_dim": 4, "kernels": (3, 3), "strides": (1, 1),
}  # fmt: skip


def tiny(**fields):
    return torchcaps.create_model("inverted-simple", **{**TINY, **fields}).double()


@pytest.mark.parametrize(
    "name, fields, count",
    [
        ("inverted-simple", {}, 492_177),
        ("inverted-simple", {"channels": 256}, 561_297),
        ("inverted-resnet", {}, 1_828_817),
        ("inverted-simple-100", {}, 1_462_989),
        ("inverted-resnet-100", {}, 2_799_629),
        ("em-simple", {}, 453_044),
        ("em-resnet", {}, 1_710_580),
        ("capsnet", {"in_channels": 3, "image_size": 32, "reconstruction": "none"}, 7_992_576),
        ("cnn", {}, 18_919_434),
        ("cnn-multi-fc", {}, 42_490_762),
        ("resnet18", {}, 11_173_962),
        ("sr-capsnet", {}, 3_190_288),
        ("sr-capsnet-1", {}, 934_416),
        ("capsnet-resnet", {}, 6_616_128),
        ("capsnet-resnet-256", {}, 12_451_136),  # 12.45M
        ("capsnet-resnet-256", {"num_classes": 100}, 36_044_096),  # 36.04M
        ("inverted-multi-matrix-42m", {}, 41_593_281),  # 42M; how is not printed
        ("resnet20", {}, 272_474),
    ],
)
def test_parameters_are_as_printed(name, fields, count):
    assert torchcaps.create_model(name, **fields).num_parameters == count


def test_the_best_model_stays_below_three_million():
    from torchcaps.models.registry import build
    from torchcaps.training.registry import get_recipe

    assert build(get_recipe("inverted/best").model).num_parameters <= 3_000_000


def every_pass(model, images):
    """All layers in all passes, by explicit windows and votes, dead passes too."""
    c = model.config
    poses = [model.primary_norm(model.primary(model.backbone(model.normalize(images))))]

    def step(number, below, parents):
        layer = model.layers[number]
        if isinstance(layer, ConvCaps):
            rows = unfold(below, layer.window)
            grid, rows = rows.shape[:3], rows.flatten(0, 2)
        else:
            grid, rows = below.shape[:1], below.flatten(1, -2)
        before = None if parents is None else parents.reshape(-1, *parents.shape[-2:])
        weight = layer.weight
        summed, _ = inverted_attention_step_reference(rows, weight, before, scale=c.scale)
        if c.norm:
            summed = F.layer_norm(summed, summed.shape[-1:], layer.norm.weight, layer.norm.bias)
        return summed.reshape(*grid, *summed.shape[1:])

    for number in range(len(model.layers)):
        poses.append(step(number, poses[-1], None))
    for _ in range(c.num_iters - 1):
        poses = [poses[0]] + [step(n, poses[n], poses[n + 1]) for n in range(len(model.layers))]
    return model.head(poses[-1]).squeeze(-1)


@pytest.mark.parametrize("num_iters", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("fields", [{}, {"matrix": False}, {"dense": (3,)}, {"norm": False}])
def test_passes_that_reach_no_output_can_be_left_out(num_iters, fields):
    model = tiny(num_iters=num_iters, **fields)
    images = torch.rand(2, 1, 14, 14).double()
    torch.testing.assert_close(model(images).logits, every_pass(model, images))


def test_leaving_passes_out_changes_no_bit_of_scores_and_gradients():
    model = tiny(num_iters=3)
    images = torch.rand(2, 1, 14, 14).double()
    primary = model.primary_norm(model.primary(model.backbone(model.normalize(images))))
    poses = [primary]
    for number in range(len(model.layers)):
        poses.append(model.attend(number, poses[-1], None).poses)
    for _ in range(2):
        moved = [model.attend(n, poses[n], poses[n + 1]).poses for n in range(len(model.layers))]
        poses = [primary, *moved]
    whole = model.head(poses[-1]).squeeze(-1)
    scores = model(images).logits
    assert torch.equal(scores, whole)
    weights = [layer.weight for layer in model.layers]
    ours, all_of_it = (torch.autograd.grad(s.square().sum(), weights) for s in (scores, whole))
    assert all(torch.equal(a, b) and a.any() for a, b in zip(ours, all_of_it, strict=True))


def test_two_passes_attend_in_the_class_capsules_alone(monkeypatch):
    model = tiny(num_iters=3, dense=(3,))
    seen, original = [], model.attend
    monkeypatch.setattr(
        model,
        "attend",
        lambda n, p, q, c=False: (seen.append((n, q is None)), original(n, p, q, c))[1],
    )
    model(torch.rand(1, 1, 14, 14).double())
    assert seen == [(0, True), (1, True), (2, True), (3, True), (2, False), (3, False), (3, False)]


def test_sequential_with_one_pass_is_concurrent_with_one():
    model = tiny(num_iters=1)
    other = tiny(num_iters=1, concurrent=False)
    other.load_state_dict(model.state_dict())
    images = torch.rand(2, 1, 14, 14).double()
    torch.testing.assert_close(model(images).logits, other(images).logits)
    more = tiny(num_iters=3, concurrent=False)
    more.load_state_dict(model.state_dict())
    assert not torch.allclose(more(images).logits, other(images).logits)


def test_an_active_child_counts_and_a_silent_one_does_not():
    model = tiny(activations=True)
    with torch.no_grad():
        model.active.weight.zero_()
        model.active.bias.fill_(100.0)
    plain = tiny()
    plain.load_state_dict(model.state_dict(), strict=False)
    images = torch.rand(2, 1, 14, 14).double()
    torch.testing.assert_close(model(images).logits, plain(images).logits)
    with torch.no_grad():
        model.active.bias.fill_(-100.0)
    layers, _ = model.route(Capsules(torch.rand(1, 7, 7, 2, 4).double()))
    assert layers[-1].poses.std() < 1e-6


@pytest.mark.parametrize("num_iters", [1, 2, 3, 5])
def test_every_layer_has_the_coupling_of_its_last_pass(num_iters):
    """In four layers: the class capsules attend in all passes, those below in fewer."""
    model = tiny(num_iters=num_iters, dense=(3,))
    primary = Capsules(torch.rand(2, 7, 7, 2, 4).double())
    layers, _ = model.route(primary, coupling=True)
    states = [[primary.poses]]
    for number in range(len(model.layers)):
        states[0].append(model.attend(number, states[0][-1], None).poses)
    for _ in range(num_iters - 1):
        below = states[-1]
        moved = [model.attend(n, below[n], below[n + 1]).poses for n in range(len(model.layers))]
        states.append([primary.poses, *moved])
    for number, layer in enumerate(layers):
        last = num_iters - 1 - (len(layers) - 1 - number)  # the pass in which it acts last
        if last <= 0:
            wanted = model.attend(number, states[0][number], None, True)
        else:
            before = states[last - 1]
            wanted = model.attend(number, before[number], before[number + 1], True)
        torch.testing.assert_close(layer.coupling, wanted.coupling)
        torch.testing.assert_close(layer.poses, wanted.poses)


def test_converged_is_where_more_passes_change_nothing_and_so_are_its_gradients():
    model = tiny(num_iters="converged")
    model.solver = Solver(max_iters=200, tolerance=1e-12, damping=1e-8)
    unrolled = tiny(num_iters=120)
    unrolled.load_state_dict(model.state_dict())
    images = torch.rand(2, 1, 14, 14).double()
    found, wanted = model(images, coupling=True), unrolled(images)
    torch.testing.assert_close(found.logits, wanted.logits, atol=1e-7, rtol=1e-6)
    assert found.coupling.shape == (2, 3 * 3 * 2, 3) and found.layers[1].coupling is not None
    assert found.residual.shape == (2,) and found.residual.max() < 1e-9
    found.logits.square().sum().backward()
    wanted.logits.square().sum().backward()
    for (name, one), other in zip(model.named_parameters(), unrolled.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-6, rtol=1e-4, msg=name)


def test_backbones_say_what_they_return():
    for name in ("simple", "resnet", "resnet-wide"):
        stem = make_backbone(name, 3, 8)
        for side in (9, 12):
            shape = stem(torch.rand(2, 3, side, side)).shape
            assert shape[1:] == (stem.out_channels, stem.out_side(side), stem.out_side(side))
    with pytest.raises(TorchcapsError, match="no backbone 'vgg'"):
        make_backbone("vgg", 3)


def test_bad_sizes_are_said():
    with pytest.raises(TorchcapsError, match="must be at least 1"):
        tiny(num_iters=0)
    with pytest.raises(TorchcapsError, match="too few for these windows"):
        tiny(image_size=6)
    with pytest.raises(TorchcapsError, match="num_iters"):
        tiny(num_iters="often")
