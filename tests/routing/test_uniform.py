import pytest
import torch

from torchcaps.errors import TorchcapsError
from torchcaps.routing import dynamic_routing_reference, uniform_routing
from torchcaps.routing.uniform import uniform_routing_reference

from .test_dynamic import inputs, loops


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("squash", [True, False])
def test_against_loops_and_one_dynamic_iteration(shared, squash):
    poses, weight = inputs(shared)
    parents, coupling = uniform_routing(poses, weight, squash=squash)
    expected = loops(poses.tolist(), weight.expand(7, -1, -1, -1).tolist(), 1, squash)
    torch.testing.assert_close(parents, expected[0])
    torch.testing.assert_close(coupling, expected[1])
    torch.testing.assert_close(parents, dynamic_routing_reference(poses, weight, 1, squash)[0])


def test_gradients():
    for shared in (True, False):
        poses, weight = (t.requires_grad_() for t in inputs(shared))
        assert torch.autograd.gradcheck(
            lambda p, w: uniform_routing_reference(p, w)[0], (poses, weight)
        )


@pytest.mark.parametrize("route", [uniform_routing_reference, dynamic_routing_reference])
def test_parents_are_squashed_in_float_under_autocast(route):
    """As the kernels do it: a length near one has no room in bfloat16."""
    poses, weight = torch.ones(2, 3, 4), torch.ones(3, 2, 4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        parents = route(poses, weight)[0]
    assert parents.dtype == torch.float32
    torch.testing.assert_close(parents, route(poses, weight)[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("shared", [True, False])
def test_invalid_poses_raise(shared):
    poses, weight = inputs(shared)
    for wrong in (poses.int(), poses.half(), poses[:, None]):
        with pytest.raises(TorchcapsError, match="poses"):
            uniform_routing(wrong, weight)
