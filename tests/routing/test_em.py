"""Loops against the reference; and the mistakes of public versions, each with its test."""

import math

import pytest
import torch

from torchcaps.routing import Window, em_routing, em_routing_reference
from torchcaps.routing.em import MIN_VARIANCE, inverse_temperature

B, I, J, D, E = 2, 7, 5, 3, 4


def inputs(seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    poses = torch.randn(B, I, D, generator=g, dtype=dtype)
    active = torch.rand(B, I, generator=g, dtype=dtype)
    weight = torch.randn(I, J, D, E, generator=g, dtype=dtype) / 2
    betas = (torch.randn(J, generator=g, dtype=dtype), torch.randn(J, generator=g, dtype=dtype))
    return poses, active, weight, *betas


def loops(poses, active, weight, beta_u, beta_a, num_iters, final):
    means, activations = torch.zeros(B, J, E), torch.zeros(B, J)
    for b in range(B):
        votes = [[(poses[b, i] @ weight[i, j]).tolist() for j in range(J)] for i in range(I)]
        r = [[1 / J] * J for _ in range(I)]
        for t in range(num_iters):
            lam = final * (1 - 0.95 ** (t + 1))
            mu, var, a = [], [], []
            for j in range(J):
                mass = sum(r[i][j] * float(active[b, i]) for i in range(I))
                share = [r[i][j] * float(active[b, i]) / mass for i in range(I)]
                m = [sum(share[i] * votes[i][j][e] for i in range(I)) for e in range(E)]
                s = [
                    sum(share[i] * (votes[i][j][e] - m[e]) ** 2 for i in range(I)) + MIN_VARIANCE
                    for e in range(E)
                ]
                cost = sum(float(beta_u[j]) + 0.5 * math.log(x) for x in s) * mass
                a.append(1 / (1 + math.exp(-lam * (float(beta_a[j]) - cost))))
                mu.append(m)
                var.append(s)
            for i in range(I):
                p = []
                for j in range(J):
                    log = math.log(a[j])
                    for e in range(E):
                        log -= (votes[i][j][e] - mu[j][e]) ** 2 / (2 * var[j][e])
                        log -= 0.5 * math.log(2 * math.pi * var[j][e])
                    p.append(log)
                top = max(p)
                total = sum(math.exp(x - top) for x in p)
                r[i] = [math.exp(x - top) / total for x in p]
        means[b], activations[b] = torch.tensor(mu), torch.tensor(a)
    return means.double(), activations.double()


@pytest.mark.parametrize("num_iters", [1, 2, 3])
def test_against_loops(num_iters):
    outputs = em_routing_reference(*inputs(), num_iters, final_lambda=0.5)
    expected = loops(*inputs(), num_iters, 0.5)
    for a, b in zip(outputs[:2], expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_gradients():
    tensors = tuple(t.requires_grad_() for t in inputs())
    assert torch.autograd.gradcheck(
        lambda *t: em_routing_reference(*t, 3, final_lambda=1.0)[:2], tensors
    )


def test_assignments_sum_to_one_over_parents():
    coupling = em_routing(*inputs())[2]
    torch.testing.assert_close(coupling.sum(-1), torch.ones(B, I, dtype=torch.float64))


def test_inactive_child_has_no_effect():
    """A renormalisation after the multiplication cancels the activations in some public code."""
    poses, active, weight, *betas = inputs()
    active = active.clone()
    active[:, 3] = 0
    others = [i for i in range(I) if i != 3]
    whole = em_routing(poses, active, weight, *betas, 1)
    rest = em_routing(poses[:, others], active[:, others], weight[others], *betas, 1)
    torch.testing.assert_close(whole[0], rest[0])
    torch.testing.assert_close(whole[1], rest[1])
    half = em_routing(poses, active / 2, weight, *betas, 1, final_lambda=1.0)
    assert (
        half[1] - em_routing(poses, active, weight, *betas, 1, final_lambda=1.0)[1]
    ).abs().max() > 1e-3


def test_the_temperature_rises():
    ramp = [inverse_temperature(t) for t in range(4)]
    assert ramp == sorted(ramp) and ramp[0] == pytest.approx(0.01 * 0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ten_thousand_inputs_of_every_scale_stay_finite(dtype):
    g = torch.Generator().manual_seed(1)
    num = 10_000
    scale = 10 ** (6 * torch.rand(num, 1, 1, generator=g) - 3)
    poses = (torch.randn(num, 5, 4, generator=g) * scale).to(dtype).requires_grad_()
    active = torch.rand(num, 5, generator=g).round(decimals=1).to(dtype)
    for weight_scale in (1e-3, 1.0, 1e3):
        weight = (torch.randn(5, 3, 2, 2, generator=g) * weight_scale).to(dtype)
        zeros = torch.zeros(3)
        mean, a, r = em_routing(poses, active, weight, zeros, zeros, 3)
        grad = torch.autograd.grad(mean.sum() + a.sum(), poses)[0]
        for tensor in (mean, a, r, grad):
            assert tensor.isfinite().all()


def test_no_child_from_outside_the_grid():
    """A parent whose window hangs over the border is as one whose window ends there; each window by
    itself, since here all four see all children.
    """
    g = torch.Generator().manual_seed(0)
    poses, active = torch.randn(1, 2, 2, 1, D, generator=g), torch.rand(1, 2, 2, 1, generator=g)
    weight = torch.randn(9, J, D, E, generator=g)
    zeros = torch.zeros(J)
    corner = em_routing(
        poses, active, weight, zeros, zeros, 2, window=Window(3, 1, 1), compete="window"
    )
    inside = [4, 5, 7, 8]
    alone = em_routing(poses.flatten(1, 3), active.flatten(1), weight[inside], zeros, zeros, 2)
    torch.testing.assert_close(corner[0][:, 0, 0], alone[0])
    torch.testing.assert_close(corner[1][:, 0, 0], alone[1])
