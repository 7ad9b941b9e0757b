import pytest
import torch

from torchcaps.routing.equilibrium import STANDARD, Solver, _mix, _solve, anderson, fixed_point

EXACT = Solver(max_iters=100, tolerance=1e-12, damping=1e-10)


def affine(seed=0, size=4, batch=3):
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(size, size, generator=generator, dtype=torch.double)
    a = 0.9 * a / torch.linalg.matrix_norm(a, 2)
    b = torch.randn(batch, size, generator=generator, dtype=torch.double)
    return a.requires_grad_(), b.requires_grad_()


def test_it_solves_an_affine_map_faster_than_plain_iteration():
    a, b = affine()
    state, steps, change = anderson(lambda z: z @ a.T + b, torch.zeros_like(b), EXACT)
    expected = torch.linalg.solve(torch.eye(4).double() - a, b.T).T
    torch.testing.assert_close(state, expected, atol=1e-9, rtol=1e-9)
    assert steps < 20 and change.max() < 1e-12
    plain = torch.zeros_like(b)
    for _ in range(steps):
        plain = plain @ a.T + b
    assert (plain - expected).norm() > 1e-3


def test_it_stops_at_the_standard_tolerance():
    _, steps, change = anderson(lambda z: 0.1 * z + 1, torch.zeros(3, 4))
    assert steps < 10 and change.max() < STANDARD.tolerance == 1e-3


def test_gradients_are_those_of_the_solution():
    a, b = affine()
    state, _ = fixed_point(lambda z: z @ a.T + b, torch.zeros_like(b), EXACT)
    state.square().sum().backward()
    got = a.grad.clone(), b.grad.clone()
    a.grad = b.grad = None
    torch.linalg.solve(torch.eye(4).double() - a, b.T).T.square().sum().backward()
    torch.testing.assert_close(got[0], a.grad, atol=1e-8, rtol=1e-8)
    torch.testing.assert_close(got[1], b.grad, atol=1e-8, rtol=1e-8)


def test_no_graph_without_gradients():
    a, b = affine()
    with torch.no_grad():
        assert not fixed_point(lambda z: z @ a.T + b, torch.zeros_like(b))[0].requires_grad
    assert not fixed_point(lambda z: 0.5 * z + 1, torch.zeros(1, 2))[0].requires_grad


def test_without_convergence_returns_the_best_state():
    turn = torch.tensor([[0.0, -3.0], [3.0, 0.0]])
    solver = Solver(max_iters=4, memory=1)  # without memory nothing accelerates
    state, steps, change = anderson(lambda z: z @ turn + 1, torch.ones(2, 2), solver)
    assert steps == 4 and change.min() > solver.tolerance and state.isfinite().all()


def test_rows_do_not_depend_on_each_other():
    a, b = affine()
    alone = anderson(lambda z: z @ a.T + b[:1], torch.zeros(1, 4).double(), EXACT)[0]
    both = anderson(lambda z: z @ a.T + b, torch.zeros_like(b), EXACT)[0]
    torch.testing.assert_close(alone[0], both[0], atol=1e-9, rtol=1e-9)


def test_the_mixing_is_float32_under_autocast():
    changes, values = torch.randn(3, 2, 3), torch.randn(3, 2, 3)
    plain = _mix(changes, values, 1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(_mix(changes, values, 1e-4), plain)


def test_the_small_systems_are_solved():
    root = torch.randn(4, 5, 9, dtype=torch.double)
    matrix = root @ root.mT + 1e-6 * torch.eye(5).double()
    expected = torch.linalg.solve(matrix, torch.ones(4, 5, 1).double())[..., 0]
    torch.testing.assert_close(_solve(matrix), expected, rtol=1e-9, atol=1e-9)


def test_a_map_without_parameters_gives_the_same_gradient():
    """`alone` replaces the map in the backward iteration, and gets no gradient itself."""
    grads = []
    for alone in (False, True):
        a, b = affine()
        fixed, shift = a.detach(), b.detach()
        state, _ = fixed_point(
            lambda z, a=a, b=b: z @ a.T + b, torch.zeros_like(b), EXACT,
            (lambda z, a=fixed, b=shift: z @ a.T + b) if alone else None,
        )  # fmt: skip
        grads.append(torch.autograd.grad(state.square().sum(), (a, b)))
    for plain, cheaper in zip(*grads, strict=True):
        assert torch.equal(plain, cheaper)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_finds_the_same_point():
    solver = Solver(max_iters=40, tolerance=1e-9, damping=1e-10)
    a, b = (t.detach().cuda().requires_grad_() for t in affine())
    state, _ = fixed_point(lambda z: z @ a.T + b, torch.zeros_like(b), solver)
    expected = torch.linalg.solve(torch.eye(4, device="cuda").double() - a, b.T).T
    torch.testing.assert_close(state, expected, atol=1e-7, rtol=1e-7)
    got = torch.autograd.grad(state.square().sum(), (a, b))
    for one, other in zip(got, torch.autograd.grad(expected.square().sum(), (a, b)), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)


def test_it_gives_up_after_thirty_steps():
    _, steps, _ = anderson(lambda z: 2 * z.sin() + 5, torch.randn(4, 64), Solver(tolerance=0))
    assert steps == STANDARD.max_iters == 30
