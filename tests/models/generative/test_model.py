"""The bound by hand against Pyro's, against every selection, against differences; shapes, sizes."""

from itertools import product

import pytest
import torch

import torchcaps
from torchcaps.errors import TorchcapsError
from torchcaps.models.generative.process import Layer

SIZES = {"num_caps": (3, 5), "template_size": 4, "image_size": 28, "channels": 3, "width": 8,
         "heads": 2, "depth": 1, "inducing": 2}  # fmt: skip


def made(**fields):
    torch.manual_seed(0)
    model = torchcaps.create_model("generative", **{**SIZES, **fields}).double()
    with torch.no_grad():  # nothing at its start, where symmetries could hide a slip
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


def draws(model, count=7):
    """A posterior with every number its own, and one draw of it."""
    generator = torch.Generator().manual_seed(1)
    layers = []
    for caps in reversed(model.config.num_caps):
        location, logits = (torch.randn(count, caps, generator=generator).double() for _ in "12")
        mean, noise = (
            0.3 * torch.randn(count, caps, 2, 3, generator=generator).double() for _ in "12"
        )
        mean = mean + torch.eye(2, 3)
        std = 0.05 + 0.1 * torch.rand(count, caps, 2, 3, generator=generator).double()
        full = model.config.posterior == "full"
        drawn = mean + std * noise if full else mean
        layers.append(Layer(location, mean, std if full else None, logits, drawn))
    return torch.rand(count, 1, 28, 28, generator=generator).double(), layers


def test_the_generative_part_has_its_parameters():
    model = torchcaps.create_model("generative", image_size=40)
    assert sum(p.numel() for p in model.process.parameters()) == 6_913


def test_the_bound_is_pyros():
    from tests.models.generative.pyro_program import guide, program

    pyro = pytest.importorskip("pyro")

    model = made(posterior="full")
    images, layers = draws(model)
    layers = [Layer(*(t.requires_grad_() for t in layer)) for layer in layers]
    parts, top = layers
    values = {"k": parts.logits, "X": parts.poses.flatten(2), "t": top.logits,
              "A": (top.poses - torch.eye(2, 3)).flatten(2)}  # fmt: skip
    run, posterior = program(model), guide(model, layers)
    given = pyro.poutine.condition(posterior, values)
    traced = pyro.poutine.trace(given).get_trace(images)
    for name in values:  # conditioned sites are observed; here they are draws that were replayed
        traced.nodes[name]["is_observed"] = False
    replayed = pyro.poutine.replay(posterior, trace=traced)
    elbo = pyro.infer.TraceEnum_ELBO(max_plate_nesting=2)
    pyros = -elbo.differentiable_loss(run, replayed, images)
    ours = sum(t.sum() for t in model.bound_of(images, layers, sampled=True).terms.values())
    torch.testing.assert_close(ours, pyros, rtol=1e-9, atol=0)
    wanted = [*model.process.parameters(), *(t for layer in layers for t in layer)]
    for mine, other in zip(
        torch.autograd.grad(ours, wanted), torch.autograd.grad(pyros, wanted), strict=True
    ):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9 * float(other.abs().max()))


@pytest.mark.parametrize("on_off", ["mixture", "interpolated", "weighted"])
def test_summing_selections_out_is_adding_all_of_them(on_off):
    model = made(num_caps=(2, 3), on_off=on_off)
    _, (parts, top) = draws(model, 2)
    (arrangement,) = model.process.arrangements
    said = arrangement(top.logits, top.poses, parts.logits, parts.poses)
    every = [
        sum(said[:, part, chosen] for part, chosen in enumerate(selection))
        for selection in product(range(3), repeat=3)
    ]
    whole = torch.stack(every).logsumexp(0)
    torch.testing.assert_close(said.logsumexp(-1).sum(1), whole, rtol=1e-12, atol=0)


def test_one_object_is_summed_out():
    """Against the many-object arrangement with all but one object off, one at a time."""
    model = made(objects="one")
    images, layers = draws(model, 3)
    bound = model.bound_of(images, layers)
    parts, top = layers
    (arrangement,) = model.process.arrangements
    each = []
    for only in range(3):
        logits = torch.full_like(top.logits, -200.0)
        logits[:, only] = 200.0
        said = arrangement(logits, top.poses, parts.logits, parts.poses).logsumexp(-1).sum(1)
        still = top.poses[:, only] - torch.eye(2, 3)
        prior = torch.distributions.Normal(0.0, 1.0).log_prob(still).sum((1, 2))
        each.append(said + prior - torch.tensor(3.0).log())
    torch.testing.assert_close(bound.terms["parts"], torch.stack(each).logsumexp(0))
    torch.testing.assert_close(bound.selections[0].exp().sum(-1), torch.ones(3, 5).double())


def test_with_one_object_its_posterior_is_what_an_output_says():
    model = made(objects="one")
    images = torch.rand(3, 1, 28, 28).double()
    output = model.encode(images, coupling=True)
    bound = model.bound(images, noise=False)
    class_probabilities = bound.joint.softmax(1)
    torch.testing.assert_close(
        output.layers[1].activations, class_probabilities, atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(output.coupling, bound.selections[0].exp()[..., 1:])


@pytest.mark.parametrize("fields", [{}, {"posterior": "full"}, {"num_caps": (2, 3, 5)}], ids=str)
def test_gradients_are_those_of_differences(fields):
    model = made(**fields)
    images, layers = draws(model, 2)

    def bound(*tensors):
        size = len(tensors) // len(layers)
        parted = [tensors[n * size : (n + 1) * size] for n in range(len(layers))]
        given = [Layer(p[0], p[1], p[2] if size == 5 else None, *p[-2:]) for p in parted]
        return sum(t.sum() for t in model.bound_of(images, given).terms.values())

    tensors = [
        t.detach().clone().requires_grad_() for layer in layers for t in layer if t is not None
    ]
    assert torch.autograd.gradcheck(bound, tensors, eps=1e-6, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("fields", [{}, {"objects": "one"}, {"posterior": "full"}], ids=str)
def test_the_bound_stays_finite(fields):
    generator = torch.Generator().manual_seed(0)
    small = {**SIZES, "image_size": 24, "template_size": 3}
    model = torchcaps.create_model("generative", **{**small, **fields})
    count = 300 if fields else 2500
    for scale in (1e-3, 1.0, 30.0, 1e3):
        layers = []
        for caps in (5, 3):
            numbers = [scale * torch.randn(count, caps, generator=generator) for _ in range(2)]
            poses = [scale * torch.randn(count, caps, 2, 3, generator=generator) for _ in range(2)]
            std = torch.full_like(poses[0], 0.1) if "posterior" in fields else None
            tensors = (numbers[0], poses[0], std, numbers[1], poses[1])
            layers.append(Layer(*(t if t is None else t.requires_grad_() for t in tensors)))
        images = torch.rand(count, 1, 24, 24, generator=generator)
        with torch.autocast("cpu", torch.bfloat16):
            terms = model.bound_of(images, layers).terms
        assert all(bool(t.isfinite().all()) for t in terms.values())
        total = sum(t.sum() for t in terms.values())
        leaves = [t for layer in layers for t in (layer.logits, layer.poses)]
        assert all(
            bool(g.isfinite().all())
            for g in torch.autograd.grad(total, leaves, allow_unused=True)
            if g is not None
        )


def test_layers_and_representations():
    model = torchcaps.create_model("generative", **{**SIZES, "num_caps": (2, 3, 5)}).eval()
    images = torch.rand(4, 1, 28, 28)
    output = model(images, coupling=True)
    assert [tuple(layer.poses.shape) for layer in output.layers] == [
        (4, 5, 6),
        (4, 3, 6),
        (4, 2, 6),
    ]
    assert output.layers[1].coupling.shape == (4, 5, 3) and output.logits is None
    torch.testing.assert_close(output.reconstruction, model.bound(images, noise=False).drawn)
    found = model.representations(images)
    assert [found[n].shape[1] for n in ("t0", "t0+A0", "parts")] == [2, 14, 35]
    with pytest.raises(TorchcapsError, match="objects and parts"):
        torchcaps.create_model("generative", num_caps=(3,))
    with pytest.raises(TorchcapsError, match="one layer of objects"):
        torchcaps.create_model("generative", num_caps=(2, 3, 5), objects="one")


def test_one_state_tells_all_objects():
    """32 numbers say everything of the objects: what differs there differs in all of them."""
    model = made(state="shared", num_caps=(2, 3, 5)).eval()
    images = torch.rand(4, 1, 28, 28).double()
    assert [g.seeds.shape[1] for g in model.gather] == [1, 1]
    states = [torch.randn(2, 1, 32).double() for _ in model.heads]
    for head, state, count in zip(model.heads, states, (3, 2), strict=True):
        said = head(state)
        assert said.shape == (2, count, 7)
        assert (said[0] != said[1]).all()
    sum(t.sum() for t in model.bound(images).terms.values()).backward()
    named = dict(model.named_parameters())
    unmoved = [n for n, p in named.items() if p.grad is None or not p.grad.any()]
    assert not [n for n in unmoved if n.startswith(("gather", "heads"))]
