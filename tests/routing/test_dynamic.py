"""Loops in Python against the reference, gradients, and the properties of the formula."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchcaps.errors import TorchcapsError
from torchcaps.functional import squash
from torchcaps.routing import dynamic_routing, dynamic_routing_reference

B, I, J, D, E = 2, 7, 5, 3, 11


def loops(poses, weight, num_iters, squash=True):
    """The formula with no tensor operation in it."""
    batch, in_caps = len(poses), len(poses[0])
    out_caps, in_dim, out_dim = len(weight[0]), len(weight[0][0]), len(weight[0][0][0])
    parents, couplings = [], []
    for b in range(batch):
        votes = [
            [
                [
                    sum(poses[b][i][d] * weight[i][j][d][e] for d in range(in_dim))
                    for e in range(out_dim)
                ]
                for j in range(out_caps)
            ]
            for i in range(in_caps)
        ]
        logits = [[0.0] * out_caps for _ in range(in_caps)]
        for _ in range(num_iters):
            coupling = []
            for row in logits:
                total = sum(math.exp(x) for x in row)
                coupling.append([math.exp(x) / total for x in row])
            v = []
            for j in range(out_caps):
                s = [
                    sum(coupling[i][j] * votes[i][j][e] for i in range(in_caps))
                    for e in range(out_dim)
                ]
                r2 = sum(x * x for x in s)
                scale = math.sqrt(r2) / (1 + r2) if squash else 1.0
                v.append([scale * x for x in s])
            for i in range(in_caps):
                for j in range(out_caps):
                    logits[i][j] += sum(votes[i][j][e] * v[j][e] for e in range(out_dim))
        parents.append(v)
        couplings.append(coupling)
    return torch.tensor(parents, dtype=torch.float64), torch.tensor(couplings, dtype=torch.float64)


def inputs(shared=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    poses = torch.randn(B, I, D, generator=generator, dtype=torch.float64)
    weight = torch.randn(1 if shared else I, J, D, E, generator=generator, dtype=torch.float64)
    return poses, weight


@pytest.mark.parametrize("num_iters", [1, 2, 3, 5])
@pytest.mark.parametrize("squash", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_against_loops(num_iters, squash, shared):
    poses, weight = inputs(shared)
    parents, coupling = dynamic_routing_reference(poses, 0.3 * weight, num_iters, squash)
    whole = (0.3 * weight).expand(I, -1, -1, -1)
    expected = loops(poses.tolist(), whole.tolist(), num_iters, squash)
    torch.testing.assert_close(parents, expected[0])
    torch.testing.assert_close(coupling, expected[1])


def test_gradients():
    poses, weight = (t.requires_grad_() for t in inputs())
    assert torch.autograd.gradcheck(
        lambda p, w: dynamic_routing_reference(p, w, 3), (poses, weight)
    )


@given(st.integers(0, 1000))
def test_coupling_is_shared_out_over_parents(seed):
    coupling = dynamic_routing(*inputs(seed=seed))[1]
    torch.testing.assert_close(coupling.sum(-1), torch.ones(B, I, dtype=torch.float64))
    assert (coupling.sum(1) - 1).abs().max() > 1e-3  # and not over children


@given(st.permutations(range(I)), st.permutations(range(J)))
def test_permuting_children_or_parents_permutes_the_result(children, others):
    poses, weight = inputs()
    parents, coupling = dynamic_routing(poses, weight)
    moved, moved_coupling = dynamic_routing(poses[:, children], weight[children][:, others])
    torch.testing.assert_close(moved, parents[:, others])
    torch.testing.assert_close(moved_coupling, coupling[:, children][:, :, others])


def test_agreement_attracts():
    """Children whose votes agree are coupled more to that parent with each iteration."""
    weight = torch.eye(4).repeat(6, 2, 1, 1)
    weight[:, 1] = torch.randn(6, 4, 4, generator=torch.Generator().manual_seed(0))
    poses = torch.tensor([0.5, 0.5, 0.5, 0.5]).expand(1, 6, 4)
    shares = [dynamic_routing(poses, weight, t)[1][0, :, 0].mean() for t in (1, 2, 3)]
    assert shares[0] == 0.5 and shares[0] < shares[1] < shares[2]


def test_bias_is_added_before_the_squash():
    poses, weight = inputs()
    bias = torch.randn(J, E, dtype=torch.float64)
    plain = dynamic_routing(poses, weight, 1, squash=False)[0]
    biased = dynamic_routing(poses, weight, 1, squash=False, bias=bias)[0]
    torch.testing.assert_close(biased, plain + bias)


def test_a_gain_multiplies_the_couplings_of_its_parent_in_every_iteration():
    poses, weight = inputs()
    gain = 1 + torch.arange(J, dtype=torch.float64)
    votes = torch.einsum("bid,ijde->bije", poses, weight)
    logits = torch.zeros(votes.shape[:3], dtype=torch.float64)
    for _ in range(3):
        shares = logits.softmax(-1)
        parents = squash(torch.einsum("bij,bije->bje", shares * gain, votes))
        logits = logits + torch.einsum("bije,bje->bij", votes, parents)
    gained, coupling = dynamic_routing(poses, weight, 3, gain=gain)
    torch.testing.assert_close(gained, parents)
    torch.testing.assert_close(coupling, shares)


def test_invalid_arguments_raise():
    with pytest.raises(TorchcapsError, match="at least one"):
        dynamic_routing(*inputs(), num_iters=0)
    with pytest.raises(TorchcapsError, match="float64"):
        dynamic_routing(*inputs(), impl="triton")
    poses, weight = inputs()
    with pytest.raises(TorchcapsError, match="3 transforms for 7 children"):
        dynamic_routing(poses, weight[:3])
    with pytest.raises(TorchcapsError, match="do not split into rows"):
        dynamic_routing(poses[..., :2], weight)


def test_bias_is_squashed_with_the_sum():
    poses, weight = inputs()
    bias = torch.randn(J, E, dtype=torch.float64)
    plain = dynamic_routing(poses, weight, 1, squash=False)[0]
    for route in (dynamic_routing, dynamic_routing_reference):
        biased = route(poses, weight, 1, bias=bias)[0]
        torch.testing.assert_close(biased, squash(plain + bias))
        assert (biased.norm(dim=-1) < 1).all()
