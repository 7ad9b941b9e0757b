"""A routing that is written here and nowhere else works everywhere."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import torchcaps
from tests.conftest import TINY_CAPSNET
from torchcaps.analysis.tour import tour
from torchcaps.explorer import write_report
from torchcaps.layers import EM, VB, Capsules, ConvCaps, DenseCaps, Router, register_router
from torchcaps.layers.routers import ROUTERS, router_with
from torchcaps.routing import uniform_routing
from torchcaps.training.loop import start


@register_router("favourite")
@dataclass(frozen=True)
class Favourite(Router):
    """Every child gives each parent a share that the parent has learned."""

    sharpness: float = 1.0

    def parts(self, sizes):
        return {"liked": nn.Parameter(torch.linspace(0, 1, sizes.out_caps))}

    def __call__(self, layer, poses, activations, weight, *, window, coupling, impl):
        shares = (self.sharpness * layer.liked).softmax(0)
        parents, even = uniform_routing(
            poses, weight, squash=False, window=window, coupling=coupling, impl=impl
        )
        shares = shares * len(shares)
        return Capsules(parents * shares[:, None], None, None if even is None else even * shares)


def test_in_layers():
    dense = DenseCaps(in_caps=6, in_dim=4, out_caps=3, out_dim=5, routing="favourite")
    conv = ConvCaps(in_caps=2, in_dim=4, out_caps=3, out_dim=5, routing=Favourite(sharpness=2.0))
    for layer, poses, shape in (
        (dense, (2, 6, 4), (2, 3, 5)),
        (conv, (2, 5, 5, 2, 4), (2, 3, 3, 3, 5)),
    ):
        capsules = layer(torch.randn(poses), coupling=True)
        assert capsules.poses.shape == shape
        torch.testing.assert_close(
            capsules.coupling.sum(-1), torch.ones(capsules.coupling.shape[:-1])
        )
        capsules.poses.square().sum().backward()
        assert layer.liked.grad.abs().sum() > 0
    assert "Favourite(sharpness=2.0)" in repr(conv) and "18 of 4 -> 3 of 5" in repr(conv)


def test_in_a_model_the_tour_and_the_report(tiny_recipe, tmp_path, digits):
    model = torchcaps.create_model("capsnet", routing="favourite", **TINY_CAPSNET)
    names = {name for name, _ in model.named_parameters()}
    assert "classes.liked" in names
    steps = tour(model, digits)
    inside = next(s for s in steps if s.what.startswith("in it"))
    assert "Favourite" in inside.what and inside.where.startswith("tests/layers/test_routers.py")
    from dataclasses import replace

    run = start(
        replace(tiny_recipe, epochs=1, batch_size=1000, model=model.config), tmp_path / "run"
    )
    text = write_report([run.folder]).read_text()
    assert "Routing maps" in text and "Latent traversal" in text


def test_router_holds_only_options():
    """One object in two layers gives each its own parameters."""
    em = EM(num_iters=2)
    one, two = (
        DenseCaps(in_caps=6, in_dim=4, out_caps=3, out_dim=4, routing=em, matrix=True)
        for _ in range(2)
    )
    assert one.router is two.router and one.beta_a is not two.beta_a
    assert EM(num_iters=2) == em != EM(num_iters=3)
    assert repr(em).startswith("EM(num_iters=2, std=0.3, compete='all', ")


@pytest.mark.parametrize("name", sorted(set(ROUTERS) - {"favourite"}))
def test_a_name_takes_the_options_that_it_has(name):
    router = router_with(name, num_iters=7, squash=False, nothing=1)
    assert getattr(router, "num_iters", 7) == 7 and not getattr(router, "squash", False)
    assert router.function.__name__.endswith("_routing")


@pytest.mark.parametrize("kind", [EM, VB])
def test_compete_option(kind):
    """A window's coupling sums to one for each child only where it competes by itself."""
    layer = ConvCaps(
        in_caps=2,
        in_dim=4,
        out_caps=3,
        out_dim=4,
        kernel_size=3,
        routing=kind(num_iters=2, compete="window"),
        matrix=True,
    )
    grid = torch.randn(1, 5, 5, 2, 4), torch.rand(1, 5, 5, 2)
    alone = layer(*grid, coupling=True)
    layer.router = kind(num_iters=2)
    shared = layer(*grid, coupling=True)
    assert alone.coupling.sum(-1).sub(1).abs().max() < 1e-5
    assert shared.coupling.sum(-1).max() < 1.00001 and shared.coupling.sum(-1).min() < 0.5
    assert (alone.poses - shared.poses).abs().max() > 1e-3


def test_official_em_is_that_of_the_authors():
    one, last = EM.official(), EM.official(classes=True)
    assert (one.std, one.beta_u, one.beta_a, one.mass_floor) == (0.3, 0.5, -0.5, 1e-7)
    assert (last.std, last.beta_u, last.beta_a, last.mass_floor) == (0.01, 2.0, -1.0, 1e-5)
    assert one.scale_a == last.scale_a == 5000 and (one.compete, last.compete) == (
        "released", "window",
    )  # fmt: skip


def test_self_routing_starts_without_a_preference():
    layer = DenseCaps(in_caps=3, in_dim=4, out_caps=2, out_dim=5, routing="self")
    assert not layer.route_weight.any() and not layer.route_bias.any()
