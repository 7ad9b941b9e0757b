import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from torchcaps.functional import (
    affine_matrix,
    counter_uniform,
    inverse_2x2,
    inverse_3x3,
    log_odds,
    safe_norm,
    squash,
    translate,
    warp,
)


def test_squash_against_the_formula():
    s = torch.randn(5, 7, dtype=torch.float64)
    for i in range(5):
        r = math.sqrt(sum(float(x) ** 2 for x in s[i]))
        expected = [r**2 / (1 + r**2) * float(x) / r for x in s[i]]
        assert squash(s)[i].tolist() == pytest.approx(expected, rel=1e-9)


@given(st.floats(1e-6, 1e4))
def test_squash_keeps_direction_and_bounds_length(scale):
    s = scale * torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    v = squash(s)
    assert 0 <= float(v.norm()) < 1
    assert float(v[0, 1] / v[0, 0]) == pytest.approx(4 / 3)


def test_gradients_are_finite_at_zero_and_right_elsewhere():
    zero = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    (squash(zero).sum() + safe_norm(zero).sum()).backward()
    assert zero.grad is not None and torch.isfinite(zero.grad).all()
    s = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(squash, (s,))
    assert torch.autograd.gradcheck(safe_norm, (s,))


def splitmix(seed: int, counter: int, column: int) -> float:
    """The same generator in Python's whole numbers."""
    mask = (1 << 64) - 1

    def mix(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
        return z ^ (z >> 31)

    bits = (seed * 0xD1342543DE82EF95 + 0x632BE59BD9B4E019) & mask
    z = mix((counter & mask) ^ bits) + (column + 1) * 0x9E3779B97F4A7C15
    return (mix(z & mask) >> 40) / 2**24


@given(st.integers(-(2**31), 2**62), st.integers(0, 2**62), st.integers(0, 20))
def test_counter_uniform_is_splitmix_bit_for_bit(seed, counter, column):
    drawn = counter_uniform(seed, torch.tensor([counter]), column + 1)
    assert float(drawn[0, column]) == splitmix(seed, counter, column)


def test_counter_uniform_is_uniform_and_independent():
    u = counter_uniform(3, torch.arange(100_000), 3)
    assert u.min() >= 0 and u.max() < 1
    assert torch.allclose(u.mean(0), torch.tensor(0.5), atol=5e-3)
    assert torch.allclose(u.var(0), torch.tensor(1 / 12), atol=2e-3)
    correlation = torch.corrcoef(torch.cat([u.T, counter_uniform(4, torch.arange(100_000), 1).T]))
    assert (correlation - torch.eye(4)).abs().max() < 0.015


@given(st.integers(-9, 9), st.integers(-9, 9), st.integers(5, 12))
def test_translate_against_a_loop(dx, dy, size):
    image = torch.arange(1, 43, dtype=torch.uint8).reshape(1, 1, 6, 7)
    moved = translate(image, torch.tensor([[dx, dy]]), (size, size))
    top, left = (size - 6) // 2 + dy, (size - 7) // 2 + dx
    for y in range(size):
        for x in range(size):
            inside = 0 <= y - top < 6 and 0 <= x - left < 7
            expected = int(image[0, 0, y - top, x - left]) if inside else 0
            assert int(moved[0, 0, y, x]) == expected


def test_warp_by_whole_pixels_is_translate():
    image = torch.rand(2, 3, 9, 11)
    shift = torch.tensor([[2.0, -3.0], [-1.0, 4.0]])
    matrix = affine_matrix(torch.zeros(2), torch.ones(2, 2), torch.zeros(2), shift)
    moved = translate(image, shift.long())
    torch.testing.assert_close(warp(image, matrix, (9, 11)), moved, atol=1e-5, rtol=0)


@given(st.floats(-180, 180), st.floats(0.7, 1.4), st.floats(0.7, 1.4), st.floats(-0.3, 0.3))
def test_warp_against_pillow(degrees, sx, sy, shear):
    smooth = torch.nn.functional.avg_pool2d(torch.rand(1, 1, 39, 39), 5, 1)
    values = torch.tensor([degrees]), torch.tensor([[sx, sy]]), torch.tensor([shear])
    matrix = affine_matrix(*values, torch.tensor([[1.5, -2.25]]))
    ours = warp(smooth, matrix, 35)[0, 0].numpy()
    forward = np.vstack([matrix[0].double().numpy(), [0, 0, 1]])
    centre = np.array([[1, 0, -17.5], [0, 1, -17.5], [0, 0, 1]])
    inverse = np.linalg.inv(centre) @ np.linalg.inv(forward) @ centre
    picture = Image.fromarray(smooth[0, 0].numpy())
    flat = tuple(inverse[:2].ravel())
    theirs = np.asarray(
        picture.transform((35, 35), Image.Transform.AFFINE, flat, Image.Resampling.BILINEAR)
    )
    # Pillow repeats the border pixel where we fade to black: compare where neither touches it
    rows, columns = np.mgrid[0:35, 0:35] + 0.5
    x = inverse[0, 0] * columns + inverse[0, 1] * rows + inverse[0, 2]
    y = inverse[1, 0] * columns + inverse[1, 1] * rows + inverse[1, 2]
    inside = (x > 1) & (x < 34) & (y > 1) & (y < 34)
    assert inside.sum() > 200
    np.testing.assert_allclose(ours[inside], theirs[inside], atol=1e-4)


def test_small_inverses_are_inverses():
    generator = torch.Generator().manual_seed(0)
    for side, invert in ((2, inverse_2x2), (3, inverse_3x3)):
        m = torch.randn(7, 5, side, side, generator=generator).double()
        torch.testing.assert_close(invert(m) @ m, torch.eye(side).double().expand_as(m))


def test_log_odds_keep_double_precision():
    scores = torch.tensor([0.2, 0.9], dtype=torch.float64)
    assert log_odds(scores).dtype == torch.float64
    assert log_odds(scores.half()).dtype == torch.float32
