import torch

from torchcaps.routing.equilibrium import Solver, _mix, anderson, fixed_point

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
    states = [torch.randn(2, 3) for _ in range(3)]
    values = [torch.randn(2, 3) for _ in range(3)]
    plain = _mix(states, values, 1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(_mix(states, values, 1e-4), plain)
