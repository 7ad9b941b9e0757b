"""Parents of several windows that share a child: loops, gradients, sums, permutations, budgets."""

import math

import numpy as np
import pytest
import torch

from torchcaps.errors import TorchcapsError
from torchcaps.routing import (
    Window,
    em_routing,
    em_routing_reference,
    unfold,
    vb_routing,
    vb_routing_reference,
)
from torchcaps.routing.competition import EPS, Competition, seen_by
from torchcaps.routing.em import MIN_VARIANCE, inverse_temperature

B, SIDE, I, J, D, E = 2, 5, 3, 7, 13, 11
WINDOWS = [Window(3, 1), Window(3, 2), Window(3, 1, 1), Window(3, 2, 1)]
ROUTINGS = {"em": em_routing, "vb": vb_routing}


def inputs(window, sizes=(B, SIDE, I, J, D, E), seed=0):
    batch, side, types, parents, in_dim, out_dim = sizes
    kind = {"generator": torch.Generator().manual_seed(seed), "dtype": torch.float64}
    return (
        torch.randn(batch, side, side, types, in_dim, **kind),
        torch.rand(batch, side, side, types, **kind),
        torch.randn(window.kernel**2 * types, parents, in_dim, out_dim, **kind) / 5,
        torch.randn(parents, **kind),
        torch.randn(parents, **kind),
    )


def window_edges(window, side, types):
    """Every (window, number of the child in it, child) that there is."""
    edges = []
    for oy in range(window.out(side)):
        for ox in range(window.out(side)):
            for c in range(window.kernel**2 * types):
                y = oy * window.stride - window.padding + c // types // window.kernel
                x = ox * window.stride - window.padding + c // types % window.kernel
                if 0 <= y < side and 0 <= x < side:
                    edges.append(((oy, ox), c, (y, x, c % types)))
    return edges


def em_parents(mass, mean, scatter, betas, t):
    var = scatter / (mass + EPS) + MIN_VARIANCE
    cost = (betas[0] + 0.5 * np.log(var)).sum() * mass
    a = 1 / (1 + math.exp(-inverse_temperature(t, 1.0) * (betas[1] - cost)))
    shift = math.log(a) - 0.5 * np.log(2 * math.pi * var).sum()
    return mean, a, lambda vote: shift - ((vote - mean) ** 2 / (2 * var)).sum()


def digamma(value):
    return float(torch.digamma(torch.tensor(value, dtype=torch.float64)))


def vb_parents(masses, j, mean, scatter, betas):
    mass, dim = masses[j], len(mean)
    kappa, nu = 1 + mass, dim + 1 + mass
    psi = 1 / (1 + scatter + mass / kappa * mean**2)
    m = mass / kappa * mean
    log_pi = digamma(1 + mass) - digamma(sum(1 + n for n in masses))
    log_det = sum(digamma((nu - d) / 2) for d in range(dim)) + dim * math.log(2)
    log_det += np.log(psi).sum()
    entropy = 0.5 * dim * math.log(2 * math.pi * math.e) - 0.5 * log_det
    a = 1 / (1 + math.exp(-(betas[1] - betas[0] - math.exp(log_pi) * entropy)))
    shift = log_pi + 0.5 * log_det - 0.5 * dim / kappa
    return m, a, lambda vote: shift - 0.5 * nu * (psi * (vote - m) ** 2).sum()


def loops(name, window, poses, active, weight, beta_u, beta_a, num_iters):
    batch, side, _, types, _ = poses.shape
    parents = range(weight.shape[1])
    edges = window_edges(window, side, types)
    places = sorted({w for w, _, _ in edges})
    out = window.out(side)
    means = torch.zeros(batch, out, out, len(parents), weight.shape[-1], dtype=torch.float64)
    activations = torch.zeros(batch, out, out, len(parents), dtype=torch.float64)
    coupling = torch.zeros(batch, out, out, weight.shape[0], len(parents), dtype=torch.float64)
    for b in range(batch):
        votes = {
            (w, c): torch.einsum("d,jde->je", poses[b][child], weight[c]).numpy()
            for w, c, child in edges
        }
        windows_of = {child: [v for v, _, other in edges if other == child] for *_, child in edges}
        r = {
            (w, c, j): 1 / len(parents) / len(windows_of[child])
            for w, c, child in edges
            for j in parents
        }
        for t in range(num_iters):
            score = {}
            for place in places:
                own = [(c, float(active[b][child])) for w, c, child in edges if w == place]
                masses = [sum(r[place, c, j] * a for c, a in own) for j in parents]
                for j in parents:
                    share = {c: r[place, c, j] * a for c, a in own}
                    mean = sum(share[c] * votes[place, c][j] for c in share) / (masses[j] + EPS)
                    scatter = sum(share[c] * (votes[place, c][j] - mean) ** 2 for c in share)
                    betas = float(beta_u[j]), float(beta_a[j])
                    if name == "em":
                        update = em_parents(masses[j], mean, scatter, betas, t)
                    else:
                        update = vb_parents(masses, j, mean, scatter, betas)
                    means[b][place][j] = torch.from_numpy(update[0])
                    activations[b][place][j] = update[1]
                    score[place, j] = update[2]
            for w, c, _ in edges:
                for j in parents:
                    coupling[b][w][c, j] = r[w, c, j]
            logit = {(w, c, j): score[w, j](votes[w, c][j]) for w, c, _ in edges for j in parents}
            of_child = {}
            for w, c, child in edges:
                of_child.setdefault(child, []).extend(logit[w, c, j] for j in parents)
            for w, c, child in edges:
                top = max(of_child[child])
                total = sum(math.exp(x - top) for x in of_child[child])
                for j in parents:
                    r[w, c, j] = math.exp(logit[w, c, j] - top) / total
    return means, activations, coupling


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("name", ROUTINGS)
def test_against_loops(name, window):
    tensors = inputs(window)
    options = {"final_lambda": 1.0} if name == "em" else {}
    outputs = ROUTINGS[name](*tensors, 3, window=window, **options)
    for a, b in zip(outputs, loops(name, window, *tensors, 3), strict=True):
        torch.testing.assert_close(a, b, atol=1e-11, rtol=1e-10)


@pytest.mark.parametrize("window", [Window(3, 1), Window(3, 2, 1)], ids=str)
@pytest.mark.parametrize("name", ROUTINGS)
def test_gradients(name, window):
    tensors = tuple(t.requires_grad_() for t in inputs(window, (2, 4, 1, 3, 2, 2)))
    assert torch.autograd.gradcheck(
        lambda *t: ROUTINGS[name](*t, 3, window=window), tensors, fast_mode=True
    )


def sums_of_children(coupling, window, side=SIDE, types=I):
    """What each child gives away, over all windows and types. -> [B,H,W,I]"""
    sums = torch.zeros(coupling.shape[0], side, side, types, dtype=coupling.dtype)
    for w, c, (y, x, i) in window_edges(window, side, types):
        sums[:, y, x, i] += coupling[:, *w, c].sum(-1)
    return sums


@pytest.mark.parametrize("num_iters", [1, 2, 3])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("name", ROUTINGS)
def test_assignments_of_a_child_sum_to_one_over_all_that_see_it(name, window, num_iters):
    coupling = ROUTINGS[name](*inputs(window), num_iters, window=window)[2]
    sums = sums_of_children(coupling, window)
    torch.testing.assert_close(sums, torch.ones_like(sums))
    seen = torch.zeros(coupling.shape[1:4], dtype=torch.bool)
    for w, c, _ in window_edges(window, SIDE, I):
        seen[*w, c] = True
    assert not coupling[:, ~seen].any()  # outside the grid


@pytest.mark.parametrize("name", ROUTINGS)
def test_compete_window_sums_to_the_number_of_windows(name):
    """The old reading: a window is a dense layer of its own."""
    window = Window(3, 1)
    poses, active, weight, *betas = inputs(window)
    outputs = ROUTINGS[name](poses, active, weight, *betas, 3, window=window, compete="window")
    seen = seen_by(window, SIDE, SIDE, poses.device)
    assert seen[0, 0] == 1 and seen[2, 2] == 9 and seen[1, 2] == 6
    sums = sums_of_children(outputs[2], window)
    torch.testing.assert_close(sums, seen[None, ..., None].expand_as(sums).double())
    one = poses[:, 1:4, 2:5].flatten(1, 3), active[:, 1:4, 2:5].flatten(1)
    for a, b in zip(outputs, ROUTINGS[name](*one, weight, *betas, 3), strict=True):
        torch.testing.assert_close(a[:, 1, 2], b)
    everyone = ROUTINGS[name](poses, active, weight, *betas, 3, window=window)
    assert (everyone[0] - outputs[0]).abs().max() > 1e-2


@pytest.mark.parametrize("side, window", [(6, Window(2, 2)), (7, Window(2, 3)), (3, Window(3))])
@pytest.mark.parametrize("reference", [em_routing_reference, vb_routing_reference])
def test_where_windows_do_not_overlap_nothing_changes(reference, side, window):
    poses, active, weight, *betas = inputs(window, (B, side, I, J, D, E))
    rows = unfold(poses, window).flatten(0, 2), unfold(active[..., None], window)[..., 0]
    rows = rows[0], rows[1].flatten(0, 2)
    competition = Competition(window, side, side, I, poses.device)
    alone = reference(*rows, weight, *betas, 3)
    for a, b in zip(
        reference(*rows, weight, *betas, 3, competition=competition), alone, strict=True
    ):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("name", ROUTINGS)
def test_permutations(name):
    """Of images, of children's types and of parents' types."""
    window = Window(3, 1, 1)
    poses, active, weight, *betas = inputs(window)
    route = ROUTINGS[name]
    mean, a, coupling = route(poses, active, weight, *betas, window=window)
    kinds, parents = torch.randperm(I), torch.randperm(J)
    moved = weight.unflatten(0, (-1, I))[:, kinds].flatten(0, 1)[:, parents]
    outputs = route(
        poses.flip(0)[..., kinds, :], active.flip(0)[..., kinds], moved,
        *(beta[parents] for beta in betas), window=window,
    )  # fmt: skip
    torch.testing.assert_close(outputs[0], mean.flip(0)[..., parents, :])
    torch.testing.assert_close(outputs[1], a.flip(0)[..., parents])
    shares = coupling.flip(0).unflatten(3, (-1, I))[..., kinds, :].flatten(3, 4)[..., parents]
    torch.testing.assert_close(outputs[2], shares)


@pytest.mark.parametrize("name", ROUTINGS)
def test_images_do_not_compete(name):
    window = Window(3, 1)
    poses, active, *rest = inputs(window)
    both = ROUTINGS[name](poses, active, *rest, window=window)
    alone = ROUTINGS[name](poses[1:], active[1:], *rest, window=window)
    for a, b in zip(both, alone, strict=True):
        torch.testing.assert_close(a[1:], b)


@pytest.mark.parametrize("name", ROUTINGS)
def test_chunks_are_whole_images(name, monkeypatch):
    """A budget changes memory and nothing else, and windows that compete stay together."""
    window = Window(3, 1)
    module = __import__(f"torchcaps.routing.{name}", fromlist=["form_votes"])
    rows, original = [], module.form_votes

    def spy(poses, weight):
        rows.append(poses.shape[0])
        return original(poses, weight)

    monkeypatch.setattr(module, "form_votes", spy)
    tensors = [t.requires_grad_() for t in inputs(window, (5, SIDE, I, J, D, E))]
    an_image = 9 * 9 * I * J * E * 8
    results = []
    for budget in (1 << 30, 2 * an_image, an_image // 2):
        outputs = ROUTINGS[name](*tensors, window=window, budget=budget)
        loss = outputs[0].square().sum() + outputs[1].square().sum()
        results.append([*outputs, *torch.autograd.grad(loss, tensors)])
    assert rows[:7] == [45, 18, 18, 9, 9, 18, 18] and rows[7:12] == [9] * 5
    for parts in results[1:]:
        for a, b in zip(results[0], parts, strict=True):
            torch.testing.assert_close(a, b)


def test_children_outside_every_window():
    """The last row and column of 6x6 under 3x3/2 have no gradient and no effect on others."""
    window = Window(3, 2)
    tensors = [t.requires_grad_() for t in inputs(window, (B, 6, I, J, D, E))]
    for route in ROUTINGS.values():
        mean, active, _ = route(*tensors, window=window)
        grads = torch.autograd.grad(mean.sum() + active.sum(), tensors)
        assert all(g.isfinite().all() for g in grads)
        assert not grads[0][:, 5].any() and not grads[1][:, :, 5].any()
        assert grads[0][:, :5, :5].abs().amin(-1).min() > 0


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inputs_of_every_scale_stay_finite(scale, dtype):
    g = torch.Generator().manual_seed(1)
    sizes = 10 ** (6 * torch.rand(300, 1, 1, 1, 1, generator=g) - 3)
    poses = (torch.randn(300, 4, 4, 2, 4, generator=g) * sizes).to(dtype).requires_grad_()
    active = torch.rand(300, 4, 4, 2, generator=g).round(decimals=1).to(dtype)
    weight = (torch.randn(18, 3, 2, 2, generator=g) * scale).to(dtype)
    outputs = em_routing(poses, active, weight, *torch.zeros(2, 3), 3, window=Window(3, 1, 1))
    grad = torch.autograd.grad(outputs[0].sum() + outputs[1].sum(), poses)[0]
    for tensor in (*outputs, grad):
        assert tensor.isfinite().all()
    sums = sums_of_children(outputs[2], Window(3, 1, 1), 4, 2)
    torch.testing.assert_close(sums, torch.ones_like(sums))


def test_unknown_compete_raises():
    window = Window(3, 1)
    for route in ROUTINGS.values():
        with pytest.raises(TorchcapsError, match="is not one of all, window"):
            route(*inputs(window), window=window, compete="each")
