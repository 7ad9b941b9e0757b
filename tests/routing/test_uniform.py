import pytest
import torch

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
