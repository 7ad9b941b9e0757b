"""Images on disk: the batches of images in memory, for any threads, ranks and order of steps."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.data.test_pack import photographs
from torchcaps import data
from torchcaps.data import Augment, Loader, stream
from torchcaps.data.dataset import hold_fewer, keep_per_class, whole
from torchcaps.data.sets.packed import pack_source
from torchcaps.data.stream import StoredImages
from torchcaps.errors import TorchcapsError

OPTIONS = {"seed": 3, "augment": Augment(("translate:2", "flip")), "cutmix": 0.5}


@pytest.fixture(scope="module")
def name(tmp_path_factory):
    root = tmp_path_factory.mktemp("stream")
    photographs(root / "in", count=40)
    pack_source(f"{root}/in,size=16", root / "out")
    return f"packed:{root}/out"


@pytest.fixture
def held(name):
    return data.load(name)


@pytest.fixture
def stored(name):
    loaded = data.load(f"{name},in_memory=false")
    assert isinstance(loaded.train.images, StoredImages)
    return loaded


def equal(one, two):
    for a, b in zip(one.tensors(), two.tensors(), strict=True):
        assert (a is None and b is None) or torch.equal(a, b)


@pytest.mark.parametrize("threads, huge", [(1, 1 << 25), (2, 1), (4, 1 << 25)])
def test_batches_are_those_of_images_in_memory_in_any_order(
    threads, huge, held, stored, monkeypatch
):
    monkeypatch.setattr(stream, "VALUES_OF_A_THREAD", 1)
    monkeypatch.setattr(stream, "HUGE", huge)
    stored.train.images.store.use_threads(threads)
    assert stored.train.images.store.threads == threads
    one, two = Loader(held, 12, **OPTIONS), Loader(stored, 12, **OPTIONS)
    last = one.steps_per_epoch - 1
    for step in (0, 1, 2, last, last + 1, last + 2, 1, 100, 3, 3):
        equal(one.batch(step), two.batch(step))


def test_small_images_get_fewer_threads(stored):
    store = stored.train.images.store
    values = stored.train.images[0:1].shape.numel()
    assert values < stream.VALUES_OF_A_THREAD
    store.use_threads(16)
    assert store.threads == 1
    store.decoder.shape = (224, 224, 3)
    store.use_threads(16)
    assert store.threads == 16


def test_two_ranks_share_the_batch_of_one(held, stored):
    whole_batch = Loader(held, 12, **OPTIONS)
    ranks = [Loader(stored, 12, rank=r, world_size=2, **OPTIONS) for r in (0, 1)]
    for step in (0, 1, 6, 50):
        parts = [rank.batch(step).images for rank in ranks]
        assert torch.equal(whole_batch.batch(step).images, torch.cat(parts))


def test_every_sample_comes_once_an_epoch(stored):
    loader = Loader(stored, 1, seed=1)
    rows = [int(loader._rows(0, n, 1)[0]) for n in range(loader.steps_per_epoch)]
    assert sorted(rows) == list(range(len(stored.train)))


def test_balanced_and_generated_sets_work_on_images_on_disk(name, held, stored):
    equal(Loader(held, 12, balanced=True).batch(2), Loader(stored, 12, balanced=True).batch(2))
    turned = data.load(f"rotated:{name},degrees=90,mode=L,in_memory=false")
    kept = data.load(f"rotated:{name},degrees=90,mode=L")
    equal(Loader(kept, 12).batch(1), Loader(turned, 12).batch(1))


def test_views_of_splits(held, stored):
    for change in (lambda d: hold_fewer(d, 4), lambda d: keep_per_class(d, 5)):
        one, two = change(held), change(stored)
        for split in ("train", "val"):
            rows = slice(0, 99)
            equal(getattr(one, split).batch(rows), getattr(two, split).batch(rows))
    equal(whole(held).batch(slice(0, 99)), whole(stored).batch(slice(0, 99)))
    for one, two in zip(held.test.batches(3), stored.test.batches(3), strict=True):
        equal(one, two)
    assert stored.train.images.shape == held.train.images.shape
    assert "on disk" in repr(stored.train.images)
    assert "in memory" in held.storage and "on disk" in stored.storage


def test_what_needs_all_images_in_memory_is_refused_by_name(stored, monkeypatch):
    with pytest.raises(TorchcapsError, match=r"packed:.*Tensor\.flip.*in_memory=true"):
        stored.train.images.flip(3)
    with pytest.raises(AttributeError):
        _ = stored.train.images.nothing
    monkeypatch.setattr(stream, "LARGEST_VIEW", 1000)
    with pytest.raises(TorchcapsError, match="at once"):
        stored.train.batch(slice(0, 10))


def test_the_size_decides_where_the_images_are(name, monkeypatch):
    needed = 80 * 3 * 16 * 16
    monkeypatch.setattr(stream, "memory_bytes", lambda: needed / stream.IN_MEMORY + 1)
    assert not isinstance(data.load(name).train.images, StoredImages)
    monkeypatch.setattr(stream, "memory_bytes", lambda: needed / stream.IN_MEMORY - 1)
    assert isinstance(data.load(name).train.images, StoredImages)
    assert not isinstance(data.load(f"{name},in_memory=true").train.images, StoredImages)


def test_pending_batches_are_few_and_errors_leave_no_work_behind(stored):
    store = stored.train.images.store
    for first in range(30):
        stored.train.images[first : first + 4].prefetch()
    assert len(store._pending) == stream.PENDING
    before = threading.active_count()
    broken = replace(stored)
    store.records.read = lambda number: b"no image"
    with pytest.raises(TorchcapsError, match=r"packed:.*: dog/.*not an image"):
        broken.train.batch(slice(40, 44))
    assert threading.active_count() <= before
    del store.records.read


def test_pixels_of_rows_in_any_order(held, stored):
    store = stored.train.images.store
    rows = np.array([5, 1, 1, 60])
    assert torch.equal(store.pixels(rows)[1], store.pixels(rows)[2])
    assert len(store.pixels(np.array([], np.int64))) == 0


def test_jpegs_with_an_orientation_are_not_plain(tmp_path):
    photographs(tmp_path)
    plain = {p.stem: stream.plain_jpeg(p.read_bytes()) for p in tmp_path.rglob("*.jpg")}
    assert not plain["03"] and not plain["09"] and plain["00"] and plain["07"]
    assert not stream.plain_jpeg(b"") and not stream.plain_jpeg(b"\xff\xd8\xff\xe0")
