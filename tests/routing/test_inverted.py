"""Loops against the reference, and what makes it inverted."""

import math

import pytest
import torch
from torch.nn import functional as F

from torchcaps.routing import inverted_attention_step, inverted_routing

B, I, J, D, E = 2, 7, 5, 3, 11


def inputs():
    g = torch.Generator().manual_seed(0)
    kind = {"generator": g, "dtype": torch.float64}
    return (
        torch.randn(B, I, D, **kind),
        torch.randn(I, J, D, E, **kind) / 2,
        torch.randn(B, J, E, **kind),
    )


@pytest.mark.parametrize("scale", [True, False])
def test_against_loops(scale):
    poses, weight, parents = inputs()
    summed, coupling = inverted_attention_step(poses, weight, parents, scale=scale)
    for b in range(B):
        shares = torch.zeros(I, J, dtype=torch.float64)
        for i in range(I):
            logits = []
            for j in range(J):
                vote = poses[b, i] @ weight[i, j]
                logits.append(float(vote @ parents[b, j]) / (math.sqrt(E) if scale else 1))
            total = sum(math.exp(x) for x in logits)
            shares[i] = torch.tensor([math.exp(x) / total for x in logits])
        torch.testing.assert_close(coupling[b], shares)
        for j in range(J):
            s = sum(shares[i, j] * (poses[b, i] @ weight[i, j]) for i in range(I))
            torch.testing.assert_close(summed[b, j], s)


def test_gradients():
    tensors = tuple(t.requires_grad_() for t in inputs())
    assert torch.autograd.gradcheck(lambda p, w, q: inverted_attention_step(p, w, q), tensors)


def test_parents_compete_for_children():
    """Inverted: shares sum to one over parents (a transformer's would, over children)."""
    coupling = inverted_attention_step(*inputs())[1]
    torch.testing.assert_close(coupling.sum(-1), torch.ones(B, I, dtype=torch.float64))
    assert (coupling.sum(1) - 1).abs().max() > 1e-3


def test_one_iteration_is_the_uniform_pass():
    poses, weight, _ = inputs()
    votes = torch.einsum("bid,ijde->bije", poses, weight)
    gain, bias = torch.rand(E, dtype=torch.float64), torch.rand(E, dtype=torch.float64)
    parents = inverted_routing(poses, weight, 1, norm=(gain, bias))[0]
    torch.testing.assert_close(parents, F.layer_norm(votes.sum(1) / J, (E,), gain, bias))
    first = inverted_routing(poses, weight, 1)[0]
    torch.testing.assert_close(
        inverted_routing(poses, weight, 2)[0], inverted_attention_step(poses, weight, first)[0]
    )
