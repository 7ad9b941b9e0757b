import torch
from hypothesis import given
from hypothesis import strategies as st

from torchcaps.data import hold_out


def test_embedded_digits_are_split_evenly(digits):
    assert [len(s) for s in (digits.train, digits.val, digits.test)] == [4000, 500, 500]
    for split in (digits.train, digits.val, digits.test):
        assert split.images.dtype == torch.uint8 and split.images.shape[1:] == (1, 28, 28)
        assert torch.bincount(split.labels).unique().tolist() == [len(split) // 10]


def test_splits_of_the_digits_share_no_image(digits):
    rows = [
        set(map(bytes, s.images.flatten(1).numpy()))
        for s in (digits.train, digits.val, digits.test)
    ]
    assert not (rows[0] & rows[1] or rows[0] & rows[2] or rows[1] & rows[2])


@given(st.lists(st.integers(0, 4), min_size=20, max_size=200), st.integers(0, 5))
def test_hold_out_is_stratified_seeded_and_a_partition(labels, seed):
    tensor = torch.tensor(labels)
    kept, held = hold_out(tensor, 0.1, seed)
    assert sorted(kept.tolist() + held.tolist()) == list(range(len(labels)))
    for label in set(labels):
        count = labels.count(label)
        assert int((tensor[held] == label).sum()) == round(0.1 * count)
    again = hold_out(tensor, 0.1, seed)
    assert torch.equal(held, again[1])


def test_another_seed_holds_out_other_images():
    labels = torch.arange(1000) % 10
    assert not torch.equal(hold_out(labels, seed=0)[1], hold_out(labels, seed=1)[1])
