import sys

import pytest
import torch

from torchcaps.errors import TorchcapsError
from torchcaps.routing import self_routing, self_routing_reference
from torchcaps.routing.self import BLOCKS, route_logits

B, I, J, D, E = 2, 7, 5, 3, 11


def inputs():
    g = torch.Generator().manual_seed(0)
    kind = {"generator": g, "dtype": torch.float64}
    active = torch.rand(B, I, **kind)
    weight = torch.randn(I, J, D, E, **kind)
    return (
        torch.randn(B, I, D, **kind),
        active,
        weight,
        torch.randn(I, D, J, **kind),
        torch.randn(I, J, **kind),
    )


def test_against_loops():
    poses, active, weight, route_weight, route_bias = inputs()
    parents, activations, coupling = self_routing(*inputs())
    for b in range(B):
        shares = torch.stack(
            [(poses[b, i] @ route_weight[i] + route_bias[i]).exp() for i in range(I)]
        )
        shares = shares / shares.sum(1, keepdim=True)
        torch.testing.assert_close(coupling[b], shares)
        for j in range(J):
            weights = [shares[i, j] * active[b, i] for i in range(I)]
            pose = sum(w * (poses[b, i] @ weight[i, j]) for i, w in enumerate(weights))
            torch.testing.assert_close(parents[b, j], pose / sum(weights))
            torch.testing.assert_close(activations[b, j], sum(weights) / active[b].sum())


@pytest.mark.parametrize("most", [0, BLOCKS])
def test_route_logits(monkeypatch, most):
    """In one matrix of blocks and in a product a child."""
    module = sys.modules[route_logits.__module__]  # its name in the package is the function's
    monkeypatch.setattr(module, "BLOCKS", most)
    poses, _, _, routes, _ = inputs()
    expected = torch.stack([poses[:, i] @ routes[i] for i in range(I)], 2)
    torch.testing.assert_close(route_logits(poses, routes), expected[:, None])
    turns = torch.cat([poses, 2 * poses, poses.flip(0)], 1)  # children that share routes take turns
    each = torch.stack([turns[:, i] @ routes[i % I] for i in range(3 * I)], 2)
    logits = route_logits(turns, routes)
    torch.testing.assert_close(logits, each.unflatten(2, (3, I)).transpose(1, 2))


def test_gradients():
    tensors = tuple(t.requires_grad_() for t in inputs())
    assert torch.autograd.gradcheck(lambda *t: self_routing_reference(*t), tensors)


def test_activations_are_shared_out():
    active = self_routing(*inputs())[1]
    torch.testing.assert_close(active.sum(-1), torch.ones(B, dtype=torch.float64))


def test_a_parent_looks_only_at_its_own_position():
    """Pointwise routing, as the masked autoencoder's encoder: positions are rows."""
    poses, active, *rest = inputs()
    whole = self_routing(poses, active, *rest)[0]
    alone = self_routing(poses[:1], active[:1], *rest)[0]
    torch.testing.assert_close(whole[:1], alone)


def test_route_weights_of_wrong_shape_raise():
    poses, active, weight, route_weight, route_bias = inputs()
    with pytest.raises(TorchcapsError, match=r"Route weights \[7, 3, 4\].*\[7, 3, 5\]"):
        self_routing(poses, active, weight, route_weight[..., 1:], route_bias)


def test_one_activation_is_broadcast_to_all_children():
    poses, active, *rest = inputs()
    whole = self_routing(poses, active[:, :1].expand(B, I), *rest)
    for output, expected in zip(self_routing(poses, active[:, :1], *rest), whole, strict=True):
        torch.testing.assert_close(output, expected)


def test_activations_of_another_batch_raise():
    poses, active, *rest = inputs()
    for wrong in (active[:1], active[:, :2], active[..., None]):
        with pytest.raises(TorchcapsError, match="one for all children"):
            self_routing(poses, wrong, *rest)


def test_route_weights_of_another_type_raise():
    poses, active, weight, route_weight, route_bias = inputs()
    with pytest.raises(TorchcapsError, match="give all one type"):
        self_routing(poses, active, weight, route_weight.half(), route_bias)
