"""Passes of routing: the last is the forward's, bit for bit, each what so many passes give."""

from dataclasses import replace

import pytest
import torch

from tests.models.test_registry import small
from torchcaps.models.registry import build, models

FAMILIES = ("capsnet", "em-capsnet", "inverted", "sparse", "mcae")
ROUTED = [*(m.name for m in models() if m.config.family in FAMILIES), "sr-capsnet"]
NORMALISED = ("mcae", "sr-capsnet")
"""Families that change poses after the routing."""


def made(name, **fields):
    """A small model whose weights are disturbed, and two images."""
    torch.manual_seed(0)
    model = build(replace(small(name).config, **fields)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model, torch.rand(2, *model.config.image_shape)


@pytest.mark.parametrize("name", ROUTED)
@torch.no_grad()
def test_the_last_pass_is_the_forwards(name):
    model, images = made(name)
    output = model.encode(images, coupling=True)
    traced = model.trace(images)
    above = [layer for layer in output.layers if layer.coupling is not None]
    assert traced
    for passes, layer in zip(traced, above, strict=False):
        last = passes[-1]
        assert last.coupling.shape == layer.coupling.shape
        assert torch.equal(last.coupling, layer.coupling)
        assert model.config.family in NORMALISED or torch.equal(last.poses, layer.poses)
        for one in passes:  # a child's shares add up to one, or are none outside the image
            total = one.coupling.float().sum(-1)
            assert ((total - 1).abs() < 1e-4).all() or model.config.family == "em-capsnet"


@torch.no_grad()
def test_every_pass_is_that_of_fewer_passes():
    model, images = made("capsnet", num_iters=3)
    (passes,) = model.trace(images)
    assert len(passes) == 3
    for count, one in enumerate(passes, 1):
        fewer = build(replace(model.config, num_iters=count)).eval()
        fewer.load_state_dict(model.state_dict())
        assert torch.equal(fewer.encode(images).capsules, one.poses)
    assert not torch.equal(passes[0].poses, passes[1].poses)


@pytest.mark.parametrize("iters, counts", [(1, [1, 1, 1]), (2, [1, 1, 2]), (4, [2, 3, 4])])
@torch.no_grad()
def test_layers_that_attend_together_take_the_passes_that_scores_see(iters, counts):
    model, images = made("inverted-simple", num_iters=iters)
    traced = model.trace(images)
    assert [len(passes) for passes in traced] == counts
    output = model.encode(images, coupling=True)
    for passes, layer in zip(traced, output.layers[1:], strict=True):
        assert torch.equal(passes[-1].poses, layer.poses)


@torch.no_grad()
def test_nobody_is_listened_to_afterwards():
    model, images = made("capsnet")
    model.trace(images)
    assert not any(m._forward_pre_hooks for m in model.modules())
    assert model.classes.router.num_iters == 3
