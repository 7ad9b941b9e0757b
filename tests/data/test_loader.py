import pytest
import torch

from torchcaps import data
from torchcaps.data import Augment, Loader
from torchcaps.errors import TorchcapsError


def test_an_epoch_is_a_permutation_and_the_next_another(digits):
    loader = Loader(digits, 100, seed=1)
    assert loader.steps_per_epoch == 40
    seen = torch.cat([loader.batch(i).images for i in range(40)])
    assert torch.equal(
        seen.flatten(1).sum(1).sort().values,
        (digits.train.images.float() / 255).flatten(1).sum(1).sort().values,
    )
    assert not torch.equal(loader.batch(0).images, loader.batch(40).images)


def test_a_batch_depends_on_seed_and_step_alone(digits):
    one = Loader(digits, 64, seed=3, augment=Augment(("translate:2",)))
    two = Loader(digits, 64, seed=3, augment=Augment(("translate:2",)))
    for step in (500, 0, 77, 62):
        late = two.batch(step)
        assert torch.equal(one.batch(step).images, late.images)
        assert torch.equal(one.batch(step).labels, late.labels)
    assert not torch.equal(one.batch(5).images, Loader(digits, 64, seed=4).batch(5).images)


def test_ranks_share_the_global_batch(digits):
    augment = Augment(("translate:2",))
    whole = Loader(digits, 60, seed=2, augment=augment).batch(70)
    parts = [
        Loader(digits, 60, seed=2, augment=augment, rank=r, world_size=3).batch(70)
        for r in range(3)
    ]
    assert torch.equal(whole.images, torch.cat([p.images for p in parts]))
    assert torch.equal(whole.labels, torch.cat([p.labels for p in parts]))


def test_batches_made_together_are_those_made_alone(digits):
    alone = Loader(digits, 64, seed=2, augment=Augment(("translate:2",)), rank=1, world_size=2)
    together = Loader(digits, 64, seed=2, augment=Augment(("translate:2",)), rank=1, world_size=2)
    together._group = 8
    for step in (0, 1, 7, 8, 61, 62, 63, 5):  # 62 steps an epoch: the last group is shorter
        assert torch.equal(alone.batch(step).images, together.batch(step).images), step


def test_generated_sets_change_every_epoch():
    loader = Loader(data.load("translated:digits"), 4000, seed=0)
    first, second = loader.batch(0), loader.batch(1)
    assert first.images.shape == (4000, 1, 40, 40)
    order = [b.images.flatten(1).sum(1).sort() for b in (first, second)]
    assert torch.allclose(order[0].values, order[1].values, rtol=1e-4)  # the same digits
    rows = [b.images[o.indices] for b, o in zip((first, second), order, strict=True)]
    moved = (rows[0] != rows[1]).flatten(1).any(1)
    assert moved.float().mean() > 0.9  # at other places


def test_impossible_sizes_are_explained(digits):
    with pytest.raises(TorchcapsError, match="more than the 4000"):
        Loader(digits, 5000)
    with pytest.raises(TorchcapsError, match="shared by 3"):
        Loader(digits, 64, world_size=3)


def test_cutmix_depends_on_seed_and_step_alone_for_every_rank_and_group(digits):
    options = {"seed": 2, "augment": Augment(("translate:2",)), "cutmix": 0.5}
    whole, together = Loader(digits, 60, **options), Loader(digits, 60, **options)
    together._group = 8
    ranks = [Loader(digits, 60, rank=r, world_size=3, **options) for r in range(3)]
    for step in (70, 3):
        for field in ("images", "labels", "pasted", "kept"):
            expected = getattr(whole.batch(step), field)
            assert torch.equal(expected, getattr(together.batch(step), field))
            parts = [getattr(rank.batch(step), field) for rank in ranks]
            assert torch.equal(expected, torch.cat(parts))
    plain = Loader(digits, 60, seed=2, augment=options["augment"]).batch(3)
    mixed = whole.batch(3)
    own = mixed.kept == 1
    assert 0.3 < own.float().mean() < 0.8
    assert torch.equal(mixed.images[own], plain.images[own])
    assert torch.equal(mixed.labels, plain.labels)
    assert len(mixed[slice(0, 7)].pasted) == 7


@pytest.mark.parametrize("size", [0, -3])
def test_a_batch_has_an_image(size, digits):
    with pytest.raises(TorchcapsError, match="at least 1"):
        Loader(digits, size, seed=0)
    with pytest.raises(TorchcapsError, match="at least 1"):
        list(digits.test.batches(size))


def test_cutmix_pastes_other_images(digits):
    """Every pasted rectangle is of a training image, seldom of the same one."""
    mixed = Loader(digits, 100, seed=2, cutmix=1.0).batch(3)
    plain = Loader(digits, 100, seed=2).batch(3)
    changed = (mixed.images != plain.images).flatten(1).any(1)
    large = mixed.kept < 0.7
    assert large.sum() > 30 and changed[large].float().mean() > 0.95
    assert (mixed.pasted != mixed.labels).float().mean() > 0.7
    known = digits.train.images.float() / 255
    row = int((mixed.kept - 0.5).abs().argmin())
    inside = mixed.images[row] != plain.images[row]
    sources = (known == mixed.images[row])[:, inside].all(1)
    assert (digits.train.labels[sources] == mixed.pasted[row]).any()


def test_the_order_of_recorded_runs_stays():
    """Other numbers here change every recorded run."""
    loader = Loader(data.load("digits"), 10, seed=3)
    assert loader.batch(0).labels.tolist() == [8, 5, 4, 8, 1, 4, 8, 9, 9, 8]
    assert loader.batch(400).labels.tolist() == [6, 1, 1, 7, 7, 0, 5, 9, 0, 0]
