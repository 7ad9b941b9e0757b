"""Support, ranks, masks and boosts against loops, with sizes that are distinct primes."""

import math

import pytest
import torch

from torchcaps.errors import TorchcapsError
from torchcaps.models.sparse.mask import SparseMask, ranks_of, support_of

B, H, W, P, J = 2, 3, 5, 7, 11


def coupling():
    return torch.randn(B, H * W * P, J, generator=torch.Generator().manual_seed(0)).softmax(-1)


def test_support_is_the_largest_share_of_any_type_summed_over_positions():
    shares = coupling()
    found = support_of(shares, (H, W, P))
    table = shares.reshape(B, H, W, P, J)
    for b in range(B):
        for j in range(J):
            wanted = 0.0
            for y in range(H):
                for x in range(W):
                    wanted += max(float(table[b, y, x, p, j]) for p in range(P))
            assert float(found[b, j]) == pytest.approx(wanted, rel=1e-5)


def test_the_authors_slip_takes_maxima_over_places_of_one_type():
    """Their capsules lie (type, row, column) and are read as (row, column, type)."""
    shares = coupling()
    table = shares.reshape(B, H, W, P, J)
    found = support_of(shares, (H, W, P), authors=True)
    flat = [(p, y, x) for p in range(P) for y in range(H) for x in range(W)]
    for b in range(B):
        for j in range(J):
            wanted = 0.0
            for start in range(0, len(flat), P):
                chunk = flat[start : start + P]
                wanted += max(float(table[b, y, x, p, j]) for p, y, x in chunk)
            assert float(found[b, j]) == pytest.approx(wanted, rel=1e-5)
    assert not torch.allclose(found, support_of(shares, (H, W, P)))


def test_children_without_places_are_summed():
    shares = coupling()
    torch.testing.assert_close(support_of(shares, (H * W * P,)), shares.sum(1))
    assert not support_of(shares.requires_grad_(), (H, W, P)).requires_grad


def test_ranks_are_those_of_a_loop_and_equals_go_by_place():
    support = torch.tensor([[3.0, 1.0, 3.0, 2.0, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    assert ranks_of(support).tolist() == [[0, 3, 1, 2, 4], [0, 1, 2, 3, 4]]
    many = torch.randint(0, 4, (B, J)).float()
    for row, found in zip(many.tolist(), ranks_of(many).tolist(), strict=True):
        for j in range(J):
            ahead = sum(row[k] > row[j] or (row[k] == row[j] and k < j) for k in range(J))
            assert found[j] == ahead


def test_masks():
    rank = torch.arange(16)[None]
    mask = SparseMask(16).mask_of(rank)[0]
    wanted = [math.exp(-12 * r / 15) for r in range(16)]
    wanted = [m if m >= 0.01 else 0.0 for m in wanted]
    assert mask.tolist() == pytest.approx(wanted) and int((mask > 0).sum()) == 6
    assert SparseMask(16, "one-hot").mask_of(rank)[0].tolist() == [1.0] + [0.0] * 15
    assert SparseMask(16, "top-k", k=3).mask_of(rank).sum() == 3
    assert SparseMask(16, "none").mask_of(rank).sum() == 16
    assert SparseMask(1).mask_of(torch.zeros(2, 1).long()).tolist() == [[1.0], [1.0]]
    with pytest.raises(TorchcapsError, match="low < high"):
        SparseMask(4, low=2.0)


def test_the_boost_counts_in_the_ranking_alone():
    mask = SparseMask(J)
    before = mask(coupling(), (H, W, P))
    mask.boost[4] = 100.0
    after = mask(coupling(), (H, W, P))
    assert torch.equal(before.support, after.support)
    assert (after.rank[:, 4] == 0).all() and (after.mask[:, 4] == 1).all()


def test_frequencies_and_boosts_follow_a_loop():
    mask = SparseMask(J, low=0.64, high=1.6)
    frequency, boost = None, [1.0] * J
    generator = torch.Generator().manual_seed(1)
    for step in range(1, 401):
        first = torch.rand(J, generator=generator).pow(4)
        first = first / first.sum()
        mask.count(first)
        values = first.tolist()
        if frequency is None:
            frequency = values
        else:
            frequency = [0.99 * f + 0.01 * v for f, v in zip(frequency, values, strict=True)]
        if step % 50 == 0:
            mask.adapt()
            for j in range(J):
                if frequency[j] < 0.64 / J:
                    boost[j] += 0.1
                if frequency[j] > 1.6 / J:
                    boost[j] = max(1.0, boost[j] - 0.1)
    assert mask.frequency.tolist() == pytest.approx(frequency, rel=1e-4)
    assert mask.boost.tolist() == pytest.approx(boost, rel=1e-5)


def test_ranges_follow_the_number_of_capsules():
    """At an even share nothing changes; half of it is rare, twice of it common; for any number."""
    for count in (4, 16, 64):
        mask = SparseMask(count)
        mask.boost.fill_(2.0)
        mask.frequency.fill_(1 / count)
        mask.frequency[0], mask.frequency[1] = 0.5 / count, 2 / count
        mask.adapt()
        assert mask.boost[:3].tolist() == pytest.approx([2.1, 1.9, 2.0])


def test_online_ranges_are_a_deviation_from_the_mean():
    mask = SparseMask(5)
    mask.boost.fill_(2.0)
    mask.frequency.copy_(torch.tensor([0.0, 0.2, 0.2, 0.2, 0.4]))
    mask.adapt(online=True)
    assert mask.boost.tolist() == pytest.approx([2.1, 2.0, 2.0, 2.0, 1.9])


def test_relative_boosts_follow_a_loop_and_cannot_wind_up():
    mask, boost = SparseMask(J), [1.0] * J
    generator = torch.Generator().manual_seed(2)
    for _ in range(300):
        first = torch.rand(J, generator=generator).pow(4)
        mask.frequency.copy_(first / first.sum())
        mask.adapt(relative=True)
        for j, share in enumerate(mask.frequency.tolist()):
            boost[j] *= 1.1 if share < 0.64 / J else 1 / 1.1 if share > 1.6 / J else 1
        boost = [b / min(boost) for b in boost]
    assert mask.boost.tolist() == pytest.approx(boost, rel=1e-4) and min(boost) == 1
    mask.boost.fill_(1.0)
    mask.frequency.zero_()
    mask.adapt(relative=True)  # all are rare alike: nothing to tell apart
    assert mask.boost.tolist() == [1.0] * J
