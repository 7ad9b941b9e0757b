"""EM routing as its authors' program computes it, against its formulas in plain loops."""

import math

import numpy as np
import pytest
import torch

from torchcaps.errors import TorchcapsError
from torchcaps.layers import EM, ConvCaps, DenseCaps
from torchcaps.routing import Window, em_routing

B, TYPES, PARENTS, SIDE, DIM = 2, 3, 2, 5, 4  # poses are 2x2
MIN_VAR, FINAL = 5e-4, 0.01
WINDOW = Window(3, 1)


def m_step(r, active, votes, old, beta, sigma_bias, activation_bias, floor):
    """One parent: assignments, activations and votes of its children, and its previous mean."""
    conf = [r[c] * active[c] for c in range(len(r))]
    mass = sum(conf) + floor
    mean = 0.9 * sum(c * v for c, v in zip(conf, votes, strict=True)) / mass + 0.1 * old
    var = MIN_VAR + sum(c * (v - mean) ** 2 for c, v in zip(conf, votes, strict=True)) / mass
    win = mass * (-np.log(var).sum() - sigma_bias * DIM * (math.log(2 * math.pi) + 1))
    logit = beta * (win - activation_bias * 5000)
    log_active = min(0.0, logit) - math.log(1 + math.exp(-abs(logit)))
    shift = log_active - (DIM * math.log(2 * math.pi) + np.log(var).sum()) / 2
    return mean, logit, [shift - ((v - mean) ** 2 / (2 * var)).sum() for v in votes]


def vote(pose, transform):
    return (pose.reshape(2, 2) @ transform).reshape(-1)


def dense(poses, active, weight, sigma_bias, activation_bias, num_iters):
    """poses [I,4], active [I], weight [I,J,2,2]"""
    children, parents = range(weight.shape[0]), range(weight.shape[1])
    votes = [[vote(poses[i], weight[i, j]) for i in children] for j in parents]
    update = [[0.0 for _ in children] for _ in parents]
    mean, logit = [np.zeros(DIM) for _ in parents], [0.0 for _ in parents]
    for t in range(num_iters):
        beta = FINAL / 4 * (1 - 0.95 ** (t + 1))
        total = [sum(math.exp(update[k][i]) for k in parents) for i in children]
        for j in parents:
            r = [math.exp(update[j][i]) / total[i] for i in children]
            mean[j], logit[j], update[j] = m_step(
                r, active, votes[j], mean[j], beta, sigma_bias[j], activation_bias[j], 1e-5
            )
    return np.stack(mean), 1 / (1 + np.exp(-np.array(logit)))


def conv(poses, active, weight, sigma_bias, activation_bias, num_iters, stride, kernel=3):
    """poses [H,W,I,4], active [H,W,I], weight [K*K*I,J,2,2] -> [H',W',J,4], [H',W',J]

    The sums over places are those of the program: windows laid out side by side, n*k on a side,
    padded by (k-1)^2, and strips of k entries at a distance of k-1.
    """
    side, types, parents = poses.shape[0], poses.shape[2], weight.shape[1]
    n, k = (side - kernel) // stride + 1, kernel
    offsets = [(a, b, i) for a in range(k) for b in range(k) for i in range(types)]
    windows = [(y, x) for y in range(n) for x in range(n)]
    place = {
        (w, o): (w[0] * stride + o[0], w[1] * stride + o[1], o[2]) for w in windows for o in offsets
    }
    votes = {
        (w, j): [vote(poses[place[w, o]], weight[c, j]) for c, o in enumerate(offsets)]
        for w in windows
        for j in range(parents)
    }
    r = dict.fromkeys(votes, [1 / parents] * len(offsets))
    mean, logit = {key: np.zeros(DIM) for key in votes}, {}
    for t in range(num_iters):
        beta, prior = FINAL * (1 - 0.95 ** (t + 1)), {}
        for w, j in votes:
            own = [active[place[w, o]] for o in offsets]
            mean[w, j], logit[w, j], prior[w, j] = m_step(
                r[w, j], own, votes[w, j], mean[w, j], beta, sigma_bias[j], activation_bias[j], 1e-7
            )
        for j in range(parents):
            for i in range(types):
                pad = (k - 1) ** 2
                grid = np.zeros((n * k + 2 * pad, n * k + 2 * pad))
                of_type = [(c, o) for c, o in enumerate(offsets) if o[2] == i]
                top = max(prior[w, j][c] for w in windows for c, _ in of_type)
                for w in windows:
                    for c, o in of_type:
                        row, column = w[0] * k + o[0] + pad, w[1] * k + o[1] + pad
                        grid[row, column] = math.exp(prior[w, j][c] - top)
                for w in windows:
                    shares = list(r[w, j])
                    for c, o in of_type:
                        start = (w[0] + o[0]) * k, (w[1] + o[1]) * k
                        strip = [m * (k - 1) for m in range(k)]
                        total = sum(grid[start[0] + a, start[1] + b] for a in strip for b in strip)
                        shares[c] = math.exp(prior[w, j][c] - top) / (total + 1e-7)
                    r[w, j] = shares
    means = np.array(
        [[[mean[(y, x), j] for j in range(parents)] for x in range(n)] for y in range(n)]
    )
    logits = np.array(
        [[[logit[(y, x), j] for j in range(parents)] for x in range(n)] for y in range(n)]
    )
    return means, 1 / (1 + np.exp(-logits))


def randomized(layer):
    """Costs about their initial values, so that activations differ."""
    torch.nn.init.normal_(layer.weight, std=0.5)
    with torch.no_grad():
        layer.beta_a.copy_(0.02 * torch.randn(PARENTS))
        layer.beta_u.add_(0.1 * torch.randn(PARENTS))
    biases = layer.beta_u.detach().numpy(), -layer.beta_a.detach().numpy()
    return layer.double(), layer.weight.detach().numpy(), biases


@pytest.mark.parametrize("num_iters", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2])
def test_convolutional_layer(stride, num_iters):
    torch.manual_seed(stride)
    layer, weight, biases = randomized(
        ConvCaps(
            in_caps=TYPES, in_dim=DIM, out_caps=PARENTS, out_dim=DIM, stride=stride, matrix=True,
            routing=EM.official(num_iters),
        ).double()
    )  # fmt: skip
    poses = torch.randn(B, SIDE, SIDE, TYPES, DIM, dtype=torch.float64)
    active = torch.rand(B, SIDE, SIDE, TYPES, dtype=torch.float64)
    capsules = layer(poses, active)
    for b in range(B):
        mean, a = conv(poses[b].numpy(), active[b].numpy(), weight, *biases, num_iters, stride)
        torch.testing.assert_close(capsules.poses[b], torch.from_numpy(mean), atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(
            capsules.activations[b], torch.from_numpy(a), atol=1e-9, rtol=1e-9
        )
        assert 0.1 < a.mean() < 0.9


@pytest.mark.parametrize("num_iters", [1, 2, 3])
def test_class_layer(num_iters):
    """Transforms shared over positions; coordinates are added to the first two entries of a vote,
    here by the transforms of the loop's children.
    """
    torch.manual_seed(0)
    layer, weight, biases = randomized(
        DenseCaps(
            in_caps=7, in_dim=DIM, out_caps=PARENTS, out_dim=DIM, matrix=True,
            routing=EM.official(num_iters, classes=True),
        ).double()
    )  # fmt: skip
    poses = torch.randn(B, 7, DIM, dtype=torch.float64)
    active = torch.rand(B, 7, dtype=torch.float64)
    capsules = layer(poses, active)
    for b in range(B):
        mean, a = dense(poses[b].numpy(), active[b].numpy(), weight, *biases, num_iters)
        torch.testing.assert_close(capsules.poses[b], torch.from_numpy(mean), atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(
            capsules.activations[b], torch.from_numpy(a), atol=1e-9, rtol=1e-9
        )


def test_initial_values():
    layer = DenseCaps(
        in_caps=70, in_dim=16, out_caps=10, out_dim=16, matrix=True,
        routing=EM.official(classes=True),
    )  # fmt: skip
    assert layer.weight.std().item() == pytest.approx(0.01, rel=0.1)
    assert layer.beta_a.unique().item() == -1 and layer.beta_u.unique().item() == 2


def test_a_step_of_adam_moves_an_activation():
    """Without the factor 5000 a logit moves by lambda times the learning rate: by millionths."""
    moved = {}
    for name, router in (("plain", EM()), ("official", EM.official())):
        torch.manual_seed(0)
        layer = DenseCaps(in_caps=6, in_dim=4, out_caps=3, out_dim=4, matrix=True, routing=router)
        torch.nn.init.zeros_(layer.beta_a)
        poses, active = torch.randn(2, 6, 4), torch.rand(2, 6)
        optimizer = torch.optim.Adam([layer.beta_a], 5e-3)
        before = layer(poses, active).activations
        before.sum().backward()
        optimizer.step()
        moved[name] = (layer(poses, active).activations - before).abs().max().item()
    assert moved["plain"] < 1e-5 and moved["official"] > 1e-3


def places(compete, window=WINDOW, scale=1.0, impl="auto", **options):
    g = torch.Generator().manual_seed(0)
    poses = scale * torch.randn(1, SIDE, SIDE, TYPES, DIM, generator=g, dtype=torch.float64)
    active = torch.rand(1, SIDE, SIDE, TYPES, generator=g, dtype=torch.float64)
    weight = torch.randn(9 * TYPES, PARENTS, 2, 2, generator=g, dtype=torch.float64) / 5
    betas = torch.zeros(2, PARENTS, dtype=torch.float64)
    return em_routing(
        poses,
        active,
        weight,
        *betas,
        2,
        window=window,
        compete=compete,
        impl=impl,
        **options,
    )


@pytest.mark.parametrize("window", [Window(3, 1), Window(3, 2), Window(3, 2, 1)], ids=str)
def test_a_child_gives_one_to_every_type(window):
    coupling = places("places", window, scale=0.05)[2]
    sums = torch.zeros(SIDE, SIDE, TYPES, PARENTS, dtype=torch.float64)
    for y in range(coupling.shape[1]):
        for x in range(coupling.shape[2]):
            table = coupling[0, y, x].unflatten(0, (3, 3, TYPES))
            for a in range(3):
                for b in range(3):
                    at = (
                        y * window.stride + a - window.padding,
                        x * window.stride + b - window.padding,
                    )
                    if 0 <= min(at) and max(at) < SIDE:
                        sums[at] += table[a, b]
    torch.testing.assert_close(sums, torch.ones_like(sums), atol=1e-4, rtol=0)  # but for the 1e-7


def test_the_program_confuses_places_if_windows_move_by_two():
    same = zip(places("places"), places("released"), strict=True)
    assert all(torch.equal(a, b) for a, b in same)
    other = zip(places("places", Window(3, 2)), places("released", Window(3, 2)), strict=True)
    assert all(not torch.allclose(a, b) for a, b in other)


def test_kernels_do_not_normalize_over_places():
    with pytest.raises(TorchcapsError, match="impl='triton': the kernels normalize over types"):
        places("places", impl="triton")


def test_unknown_options_raise():
    with pytest.raises(TypeError, match="dampening"):
        places("all", dampening=0.1)
