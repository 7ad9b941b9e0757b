from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchcaps.data import Dataset, Split, as_dataset, hold_out, load
from torchcaps.data.dataset import class_warnings, hold_fewer, keep_per_class, named_as
from torchcaps.data.source import sha256
from torchcaps.errors import TorchcapsError

SHA256_OF_SEED_0 = "46dcc6125dcd254fd5e573152fee76e0e755415a3b6afe28b40a3e1b06240cc3"
"""Of the images and labels of train, val and test; torchcaps/weights were trained on them."""


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


def test_test_images_of_the_digits_are_the_same_for_every_seed(digits):
    other = load("digits", seed=1)
    assert torch.equal(other.test.images, digits.test.images)
    assert not torch.equal(other.val.images, digits.val.images)
    rows = {
        name: set(map(bytes, getattr(other, name).images.flatten(1).numpy()))
        for name in ("train", "val", "test")
    }
    assert [len(rows[name]) for name in rows] == [4000, 500, 500]
    assert not rows["test"] & (rows["train"] | rows["val"])


def test_the_digits_of_seed_0_are_those_of_the_bundled_weights(digits):
    tensors = [t for s in (digits.train, digits.val, digits.test) for t in (s.images, s.labels)]
    content = b"".join(t.numpy().tobytes() for t in tensors)
    assert sha256(content) == SHA256_OF_SEED_0


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


def test_fewer_held_out_images_are_a_partition_too():
    data = load("digits")
    fewer = hold_fewer(data, 50)
    assert len(fewer.val) == 50 and len(fewer.val.labels.unique()) == 10
    assert len(fewer.train) + 50 == len(data.train) + len(data.val)
    every = torch.cat([data.train.images, data.val.images]).flatten(1).sum(1).sort().values
    again = torch.cat([fewer.train.images, fewer.val.images]).flatten(1).sum(1).sort().values
    assert torch.equal(every, again) and torch.equal(fewer.test.images, data.test.images)
    assert torch.equal(fewer.train.images[: len(data.train)], data.train.images)


def test_invalid_held_out_raises():
    data = load("digits")
    for count in (-1, len(data.val) + 1):
        with pytest.raises(TorchcapsError, match="held-out 0 keeps all"):
            hold_fewer(data, count)
    with pytest.raises(TorchcapsError, match="stays as is"):
        hold_fewer(load("translated:digits"), 5)


def test_few_labels_are_balanced_over_classes():
    data = load("digits")
    few = keep_per_class(data, 7)
    assert torch.bincount(few.train.labels).tolist() == [7] * 10
    known = set(map(bytes, data.train.images.flatten(1).numpy()))
    assert set(map(bytes, few.train.images.flatten(1).numpy())) <= known
    assert torch.equal(few.val.images, data.val.images)
    assert torch.equal(few.train.images, keep_per_class(data, 7).train.images)
    assert not torch.equal(few.train.images, keep_per_class(data, 7, seed=1).train.images)


def test_too_many_labels_per_class_raise():
    for count in (-1, 401):
        with pytest.raises(TorchcapsError, match="400 training images of its smallest class"):
            keep_per_class(load("digits"), count)
    with pytest.raises(TorchcapsError, match="no single label"):
        keep_per_class(replace(load("digits"), classes=()), 5)


def labelled(*labels):
    return Split(torch.zeros(len(labels), 1, 4, 4, dtype=torch.uint8), torch.tensor(labels))


def test_classes_that_the_splits_do_not_cover_are_named(digits):
    assert class_warnings(digits) == []
    data = Dataset(
        "photos",
        labelled(0, 0, 3, 4),
        labelled(0, 1),
        labelled(0, 1),
        ("cat", "dog", "emu", "fox", "gnu"),
    )
    assert class_warnings(data) == [
        "photos: classes with no images: emu.",
        "photos: classes with no training images: dog.",
        "photos: classes with a single image: fox, gnu.",
        "photos: classes with no test images: fox, gnu.",
    ]


def test_numbers_of_classes_with_gaps_are_named():
    images = torch.zeros(40, 8, 8, dtype=torch.uint8)
    from_one = as_dataset((images, [1, 2, 3, 4] * 10))
    (text,) = class_warnings(from_one)
    assert text == "memory: classes with no images (number labels from 0 without gaps): 0."
    (text,) = class_warnings(as_dataset((images, [0, 5, 10, 15] * 10)))
    assert "1, 2, 3, 4, 6, 7, 8, 9, 11, 12 and 2 more" in text


def test_labels_are_renumbered_by_the_names_of_their_classes():
    """Images without a label have none afterwards, whatever class is the first."""
    splits = labelled(0, 1, -1), labelled(-1, 0), labelled(1, 1, -1, 0)
    data = Dataset("photos", *splits, ("dog", "cat"))
    named = named_as(data, ("emu", "cat", "dog"))
    assert named.classes == ("emu", "cat", "dog")
    assert [s.labels.tolist() for s in (named.train, named.val, named.test)] == [
        [2, 1, -1], [-1, 2], [1, 1, -1, 2]
    ]  # fmt: skip
    assert named_as(data, data.classes) is data
    pairs = replace(data, test=replace(splits[2], labels=torch.tensor([[0, 1], [1, -1]])))
    assert named_as(pairs, ("cat", "dog")).test.labels.tolist() == [[1, 0], [0, -1]]
    with pytest.raises(TorchcapsError, match="does not know: cat. The model's classes: dog, emu"):
        named_as(data, ("dog", "emu"))
