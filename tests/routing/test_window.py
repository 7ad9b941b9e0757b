"""Windows, votes and coordinates against loops; and references that stay within their budget."""

import pytest
import torch

from torchcaps.errors import TorchcapsError
from torchcaps.routing import (
    Window,
    add_coordinates,
    dynamic,
    dynamic_routing,
    form_votes,
    step,
    unfold,
)
from torchcaps.routing.step import by_rows


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(3, 2, 0), (3, 1, 1), (2, 3, 1), (1, 1, 0)]
)
def test_unfold_against_a_loop(kernel, stride, padding):
    """The first public version of inverted attention scrambled poses across positions here."""
    grid = torch.randn(2, 7, 6, 3, 5)
    window = Window(kernel, stride, padding)
    children = unfold(grid, window)
    assert children.shape == (2, window.out(7), window.out(6), kernel**2 * 3, 5)
    for y in range(children.shape[1]):
        for x in range(children.shape[2]):
            for ky in range(kernel):
                for kx in range(kernel):
                    row, column = y * stride + ky - padding, x * stride + kx - padding
                    for i in range(3):
                        child = children[:, y, x, (ky * kernel + kx) * 3 + i]
                        if 0 <= row < 7 and 0 <= column < 6:
                            assert torch.equal(child, grid[:, row, column, i])
                        else:
                            assert not child.any()


def test_a_matrix_vote_is_a_matrix_product():
    poses, weight = torch.randn(2, 3, 6), torch.randn(3, 4, 3, 5)
    votes = form_votes(poses, weight)
    assert votes.shape == (2, 3, 4, 10)
    for i in range(3):
        for j in range(4):
            expected = poses[:, i].view(2, 2, 3) @ weight[i, j]
            torch.testing.assert_close(votes[:, i, j].view(2, 2, 5), expected)


def test_types_share_transforms_over_positions():
    poses, weight = torch.randn(2, 6, 4), torch.randn(3, 2, 4, 4)
    torch.testing.assert_close(
        form_votes(poses, weight), form_votes(poses, weight.repeat(2, 1, 1, 1))
    )


@pytest.mark.parametrize("rows, to", [(1, "column"), (3, "column"), (3, "first")])
def test_coordinates_are_added_to_the_votes(rows, to):
    poses, weight = torch.randn(2, 4, 5, 2, rows * 3), torch.randn(40, 6, 3, 3)
    flat = lambda p: p.flatten(1, 3)  # noqa: E731
    before = form_votes(flat(poses), weight)
    after = form_votes(*(lambda p, w: (flat(p), w))(*add_coordinates(poses, weight, to=to)))
    added = (after - before).view(2, 4, 5, 2, 6, rows, 3)
    row = rows == 1 or to == "first"
    first = added[..., 0, 0] if row else added[..., 0, 2]
    second = added[..., 0, 1] if row else added[..., 1, 2]
    y = ((torch.arange(4) + 0.5) / 4)[None, :, None, None, None].expand_as(first)
    x = ((torch.arange(5) + 0.5) / 5)[None, None, :, None, None].expand_as(second)
    torch.testing.assert_close(first, y, atol=1e-5, rtol=0)
    torch.testing.assert_close(second, x, atol=1e-5, rtol=0)
    torch.testing.assert_close(added.abs().sum(), first.sum() + second.sum(), atol=1e-2, rtol=0)


def test_budget_does_not_change_results():
    poses = torch.randn(3, 5, 5, 2, 4, requires_grad=True)
    weight = torch.randn(18, 3, 4, 4, requires_grad=True)
    results = []
    for budget in (1 << 30, 4 * 18 * 3 * 16):
        parents, coupling = dynamic_routing(poses, weight, window=Window(3, 1), budget=budget)
        grads = torch.autograd.grad(parents.square().sum(), (poses, weight))
        results.append((parents, coupling, *grads))
    for whole, parts in zip(*results, strict=True):
        torch.testing.assert_close(whole, parts)


def test_a_budget_is_kept():
    largest = 0

    def route(poses, weight, *_):
        nonlocal largest
        largest = max(largest, form_votes(poses, weight).numel() * 4)
        return (poses.sum(1),)

    by_rows(route, torch.randn(50, 8, 4), torch.randn(8, 3, 4, 4), budget=10_000)
    assert 5_000 < largest <= 10_000


def test_images_in_turns_equal_all_at_once(monkeypatch):
    poses = torch.randn(2 * step.ROWS_IN_CACHE + 3, 8, 4, requires_grad=True)
    weight = torch.randn(8, 3, 4, 5, requires_grad=True)
    reference, sizes = dynamic.dynamic_routing_reference, []

    def counted(poses, *others, **named):
        sizes.append(len(poses))
        return reference(poses, *others, **named)

    monkeypatch.setattr(dynamic, "dynamic_routing_reference", counted)
    results = []
    for rows in (step.ROWS_IN_CACHE, len(poses)):
        monkeypatch.setattr(step, "ROWS_IN_CACHE", rows)
        parents, coupling = dynamic_routing(poses, weight)
        grads = torch.autograd.grad(parents.square().sum(), (poses, weight))
        results.append((parents, coupling, *grads))
    assert sizes == [16, 16, 3, 35]
    for parts, whole in zip(*results, strict=True):
        torch.testing.assert_close(parts, whole)


def test_window_larger_than_the_grid_raises():
    with pytest.raises(TorchcapsError, match="does not fit on a grid of side 2"):
        unfold(torch.randn(1, 2, 2, 1, 1), Window(3))
    with pytest.raises(TorchcapsError, match="at least 1"):
        Window(0)
