"""A generator's images have the pose that it claims."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchcaps import data
from torchcaps.data.sets import generated
from torchcaps.data.sets.generated import affnist_transformation, rotation, translation
from torchcaps.errors import TorchcapsError
from torchcaps.functional import counter_uniform, translate


def centroid(images):
    """Of the ink, from the centre, x right and y up."""
    _, _, height, width = images.shape
    mass = images.sum((1, 2, 3))
    x = (images.sum((1, 2)) * (torch.arange(width) - (width - 1) / 2)).sum(-1) / mass
    y = -(images.sum((1, 3)) * (torch.arange(height) - (height - 1) / 2)).sum(-1) / mass
    return x, y


def axis(images):
    """Angle of the long axis of the ink, in degrees, from second moments (mod 180)."""
    _, _, height, width = images.shape
    cx, cy = centroid(images)
    x = torch.arange(width) - (width - 1) / 2 - cx[:, None]
    y = -(torch.arange(height) - (height - 1) / 2) - cy[:, None]
    ink = images[:, 0]
    xx = (ink * x[:, None, :] ** 2).sum((1, 2))
    yy = (ink * y[:, :, None] ** 2).sum((1, 2))
    xy = (ink * x[:, None, :] * y[:, :, None]).sum((1, 2))
    return torch.rad2deg(0.5 * torch.atan2(2 * xy, xx - yy))


@given(st.floats(-90, 90))
def test_a_rotated_digit_is_at_that_angle(digits, degrees):
    """The long axis of the digit one rotates by the angle, counter-clockwise."""
    ones = digits.test.images[digits.test.labels == 1][:20].float() / 255
    drawn, pose = rotation(degrees, fixed=True)(ones, torch.zeros(len(ones), 7))
    assert pose["degrees"].tolist() == pytest.approx([degrees] * len(ones))
    turned = (axis(drawn) - axis(ones) - degrees + 90) % 180 - 90
    assert turned.abs().max() < 1.5


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_uniform_rotation_stays_in_its_bound_and_returns_its_angle(seed):
    loaded = generated.rotated(None, "digits", seed=seed, degrees=30)
    ones = loaded.test.labels == 1
    upright = data.load("digits", seed=seed).test
    angles = loaded.test.factors["degrees"]
    assert angles.abs().max() <= 30
    turned = axis(loaded.test.images[ones].float()) - axis(upright.images[ones].float())
    assert ((turned - angles[ones] + 90) % 180 - 90).abs().max() < 2.5


def test_the_angles_fill_the_range():
    angles = data.load("rotated:digits,degrees=30").test.factors["degrees"]
    assert angles.min() < -25 and angles.max() > 25 and abs(float(angles.mean())) < 3


def test_the_authors_order_has_every_shift_of_a_digit_together():
    set_ = data.load("translated:digits,order=authors,size=32")
    loader = data.Loader(set_, 128)
    assert torch.equal(loader._permutation(1), torch.arange(len(set_.train)))
    number = torch.arange(100)
    unmixed = generated._InOrder(32, 2, 0, buffer=1)(set_.train, number * 0, number)
    for n in (0, 1, 30, 99):
        digit, place = divmod(n, 25)
        shift = torch.tensor([[place % 5 - 2, place // 5 - 2]])
        image = set_.train.images[digit : digit + 1].float() / 255
        assert torch.equal(unmixed.images[n : n + 1], translate(image, shift, (32, 32)))
        assert unmixed.labels[n] == set_.train.labels[digit]
    near = set_.render(set_.train, number * 0, number).images.flatten(1)
    assert len(near.sum(1).unique()) > 60, "a buffer of 5,000 records holds 200 digits"
    with pytest.raises(TorchcapsError, match="neither shuffled nor authors"):
        data.load("translated:digits,order=sorted")


@given(st.integers(28, 60), st.integers(0, 2**31))
def test_translated_digits_stay_whole(digits, size, number):
    images = digits.test.images[:8].float() / 255
    u = torch.rand(8, 7, generator=torch.Generator().manual_seed(number))
    bound = (size - 28) // 2
    drawn, pose = translation(size, bound)(images, u)
    assert drawn.shape == (8, 1, size, size)
    torch.testing.assert_close(drawn.sum((1, 2, 3)), images.sum((1, 2, 3)))
    x0, y0 = centroid(images)
    x, y = centroid(drawn)
    half = 0.0 if (size - 28) % 2 == 0 else 0.5  # an odd margin leaves the extra row below
    torch.testing.assert_close(x - x0, pose["shift_x"] - half, atol=1e-3, rtol=0)
    torch.testing.assert_close(y - y0, half - pose["shift_y"], atol=1e-3, rtol=0)


def test_every_place_is_used():
    loaded = data.load("translated:digits")
    assert sorted(loaded.test.factors["shift_x"].unique().tolist()) == list(range(-6, 7))


def test_affnist_like_is_within_affnist_bounds():
    loaded = data.load("affnist-like:digits,copies=8,shift=8")
    f = loaded.test.factors
    assert len(loaded.test) == 4000 and loaded.image_shape == (1, 40, 40)
    for name, low, high in (
        ("degrees", -20, 20), ("shear", -0.2, 0.2), ("scale_x", 0.8, 1.2), ("scale_y", 0.8, 1.2),
        ("shift_x", -8, 8), ("shift_y", -8, 8),
    ):  # fmt: skip
        assert low <= float(f[name].min()) < low + 0.05 * (high - low), name
        assert high - 0.05 * (high - low) < float(f[name].max()) <= high, name
    images = loaded.test.images
    edge = torch.cat(
        [images[..., 0, :], images[..., -1, :], images[..., :, 0], images[..., :, -1]], -1
    )
    touched = float((edge.flatten(1).amax(1) > 0).float().mean())
    assert 0.03 < touched < 0.16  # known of the recipe: about 8 %


def test_affnist_factors_describe_the_transform(digits):
    images = digits.test.images[:50].float() / 255
    u = torch.rand(50, 7, generator=torch.Generator().manual_seed(0))
    drawn, f = affnist_transformation(shift=8.0)(images, u)
    x0, y0 = centroid(images)
    x, y = centroid(drawn)
    angle, y0 = torch.deg2rad(f["degrees"]), -y0
    sx, sy = f["scale_x"] * x0 + f["shear"] * f["scale_y"] * y0, f["scale_y"] * y0
    inside = drawn[:, 0, [0, -1]].amax((1, 2)) + drawn[:, 0, :, [0, -1]].amax((1, 2)) == 0
    expected_x = angle.cos() * sx + angle.sin() * sy + f["shift_x"]
    expected_y = -angle.sin() * sx + angle.cos() * sy + f["shift_y"]
    torch.testing.assert_close(x[inside], expected_x[inside], atol=0.15, rtol=0)
    torch.testing.assert_close(-y[inside], expected_y[inside], atol=0.15, rtol=0)
    area = drawn.sum((1, 2, 3)) / images.sum((1, 2, 3))
    ratio = area[inside] / (f["scale_x"] * f["scale_y"])[inside]
    assert (ratio - 1).abs().max() < 0.1


def test_the_same_seed_gives_the_same_images_and_another_does_not():
    one, two, other = (data.load("affnist-like:digits,copies=1", seed=s) for s in (3, 3, 4))
    assert torch.equal(one.test.images, two.test.images)
    assert not torch.equal(one.test.images, other.test.images)


@pytest.mark.parametrize("name", ["multimnist", "diverse-multimnist"])
def test_overlapping_digits(name):
    loaded = data.load(f"{name}:digits,copies=3")
    split = loaded.test
    assert loaded.image_shape == (1, 36, 36) and split.labels.shape == (500, 2)
    first, second = split.labels.unbind(1)
    assert (first != second).all()
    share = float((second < 0).float().mean())
    assert share == pytest.approx(1 / 6 if "diverse" in name else 0, abs=0.05)
    assert split.targets is not None
    both = split.targets.long().sum(1).clamp(max=255)
    assert (split.images.long() - both).abs().max() <= 1
    assert (split.targets[second < 0][:, 1] == 0).all()
    mass = split.targets.float().sum((2, 3, 4))
    assert (mass[:, 0] > 0).all() and (mass[second >= 0][:, 1] > 0).all()


def test_a_stream_of_overlapping_digits_is_addressed_by_number():
    """Sample n is the same in every epoch and batch size, and its parts are training digits."""
    loaded = data.load("multimnist:digits,copies=1500")
    assert len(loaded.train) * loaded.copies == 6_000_000
    assert loaded.render is not None
    number = torch.tensor([5_999_999, 17, 4_000_017])
    one = loaded.render(loaded.train, number % len(loaded.train), number)
    again = loaded.render(loaded.train, number[1:2] % len(loaded.train), number[1:2] + 6_000_000)
    assert torch.equal(one.images[1], again.images[0])
    assert not torch.equal(one.images[1], one.images[2])
    assert one.targets is not None
    inks = {round(float(m), 3) for m in (loaded.train.images.float() / 255).sum((1, 2, 3))}
    assert all(round(float(t), 3) in inks for t in one.targets.sum((2, 3, 4)).flatten())


def test_partners_are_of_every_other_class():
    loaded = data.load("multimnist:digits,copies=10")
    assert loaded.render is not None
    zeros = (loaded.train.labels == 0).nonzero()[:1, 0].expand(4000)
    batch = loaded.render(loaded.train, zeros, torch.arange(4000))
    counts = torch.bincount(batch.labels[:, 1], minlength=10)
    assert counts[0] == 0 and (counts[1:] > 4000 / 9 * 0.75).all()
    assert math.isclose(float(counts.sum()), 4000)
    ink = (loaded.train.images.float() / 255).sum((1, 2, 3))
    assert batch.targets is not None
    for sample in range(0, 4000, 40):
        of_class = ink[loaded.train.labels == batch.labels[sample, 1]]
        assert (of_class - batch.targets[sample, 1].sum()).abs().min() < 1e-2


def test_folder_of_gray_images_can_be_a_base(tmp_path):
    from PIL import Image

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(20):
            Image.new("L", (20, 20), 10 * i).save(tmp_path / name / f"{i}.png")
    loaded = data.load(f"rotated:folder:{tmp_path},degrees=10,mode=L,size=16")
    assert loaded.image_shape == (1, 16, 16)
    assert loaded.test.factors["degrees"].abs().max() <= 10


def test_fixed_translation_is_the_same_in_every_epoch():
    """The first epoch of fresh placements, for all epochs."""
    once, fresh = (data.load(f"translated:digits,fresh={v}") for v in ("false", "true"))
    rows = torch.arange(50)
    assert once.render is None and fresh.render is not None
    drawn = fresh.render(fresh.train, rows, rows).images
    assert torch.allclose(once.train.batch(rows).images, drawn, atol=1 / 255)
    later = fresh.render(fresh.train, rows, rows + len(fresh.train)).images
    assert not torch.allclose(drawn, later)
    assert torch.equal(once.test.images, fresh.test.images)


def test_fitted_ink_stays_whole_and_goes_everywhere(digits):
    """affNIST keeps all ink on the canvas, and puts it anywhere else with the same chance."""
    images = digits.test.images[:200].float() / 255
    u = torch.rand(200, 7, generator=torch.Generator().manual_seed(3))
    drawn, pose = affnist_transformation(40)(images, u)
    wide, _ = affnist_transformation(80)(images, u)
    boxes, whole = generated.ink_boxes(drawn), generated.ink_boxes(wide)
    # the same transforms on a canvas with room on all sides: no ink was cut off
    sides, expected = (b[:, 2:] - b[:, :2] for b in (boxes, whole))
    assert ((sides - expected).abs() <= 1).all()
    room = 39 - (boxes[:, 2:] - boxes[:, :2])
    share = boxes[:, :2] / room.clamp(min=1)
    assert abs(float(share.mean()) - 0.5) < 0.05 and 0.2 < float(share.std()) < 0.36
    assert boxes[:, :2].amin(0).tolist() == [0, 0] and boxes[:, 2:].amax(0).tolist() == [39, 39]
    assert pose["shift_x"].abs().max() > 9  # farther than the 8 px of some texts


def test_a_digit_that_fills_the_canvas_stands_in_its_middle():
    full = torch.ones(3, 1, 28, 28)
    drawn, pose = affnist_transformation(20)(full, torch.rand(3, 7))
    assert drawn.shape == (3, 1, 20, 20) and torch.isfinite(pose["shift_x"]).all()
    nothing, _ = affnist_transformation(40)(torch.zeros(2, 1, 28, 28), torch.rand(2, 7))
    assert not nothing.any()


def test_affnist_within_so_many_pixels_is_an_option():
    near, fit = (data.load(f"affnist-like:digits,copies=1{o}").test for o in (",shift=2", ""))
    assert near.factors["shift_x"].abs().max() <= 2 < fit.factors["shift_x"].abs().max()
    with pytest.raises(TorchcapsError, match="neither fit nor pixels"):
        data.load("affnist-like:digits,shift=far")


def test_centred_digits_are_the_digits(digits):
    placed = data.load("centred:digits").test.images
    assert torch.equal(placed[:, :, 6:34, 6:34], digits.test.images)
    assert placed.shape[2:] == (40, 40) and placed.sum() == digits.test.images.sum()


def test_ink_boxes_are_those_of_a_loop(digits):
    images = digits.test.images[:7].float() / 255
    for image, box in zip(images, generated.ink_boxes(images), strict=True):
        rows, columns = (image[0] > 0.5 / 255).nonzero().unbind(1)
        expected = [columns.min(), rows.min(), columns.max(), rows.max()]
        assert box.tolist() == [int(w) for w in expected]


def test_the_ink_box_of_an_empty_image_is_its_center():
    assert generated.ink_boxes(torch.zeros(1, 1, 5, 8)).tolist() == [[3, 2, 3, 2]]


def test_shift_option_of_multimnist():
    far, near = (data.load(f"multimnist:digits,copies=1{more}") for more in (",shift=6", ""))
    rows = torch.arange(400)
    inks = [(one.training(rows, rows).images[:, 0] > 0.2) for one in (far, near)]
    rims = [
        float((ink[:, :4].any((1, 2)) | ink[:, -4:].any((1, 2))).float().mean()) for ink in inks
    ]
    assert rims[0] > rims[1] > 0
    with pytest.raises(TorchcapsError, match="between 0 and 8"):
        data.load("multimnist:digits,shift=9")


@pytest.mark.parametrize("seed", [0, 2])
def test_every_split_has_random_numbers_of_its_own(seed):
    """Training, validation and test images of seed s use the numbers of 3 s, 3 s + 1, 3 s + 2."""
    loaded = data.load("rotated:digits,degrees=50", seed=seed)

    def angles(key):
        return 50 * (2 * counter_uniform(key, torch.arange(500), 7)[:, 0] - 1)

    torch.testing.assert_close(loaded.val.factors["degrees"], angles(3 * seed + 1))
    torch.testing.assert_close(loaded.test.factors["degrees"], angles(3 * seed + 2))
    rows = torch.arange(500)
    images = loaded.train.images[rows].float() / 255
    u = counter_uniform(3 * seed, rows, 7)
    expected = rotation(50)(images, u)[0]
    torch.testing.assert_close(loaded.training(rows, rows).images, expected)
    pairs = data.load("multimnist:digits,copies=1", seed=seed)
    for key, split in ((1, pairs.val), (2, pairs.test)):
        u = counter_uniform(3 * seed + key, torch.arange(500), 7)
        first = split.labels[:, 0]
        assert torch.equal(split.labels[:, 1], (first + 1 + (u[:, 0] * 9).long()) % 10)


def test_the_axes_of_affnist_have_independent_scales():
    factors = data.load("affnist-like:digits,copies=4").test.factors
    names = ("degrees", "shear", "scale_x", "scale_y")
    together = torch.corrcoef(torch.stack([factors[name] for name in names]))
    assert (together - torch.eye(4)).abs().max() < 0.1


def test_white_stays_white_and_digits_shift_by_up_to_eight():
    loaded = data.load("multimnist:digits,copies=1,shift=8")
    assert loaded.test.images.max() == 255
    with pytest.raises(TorchcapsError, match="shift=9 is not between 0 and 8"):
        data.load("multimnist:digits,copies=1,shift=9")


def test_digits_rotate_by_up_to_45_degrees():
    angles = data.load("rotated:digits").test.factors["degrees"].abs()
    assert 44 < angles.max() <= 45


def test_the_authors_order_of_recorded_runs_stays():
    set_, number = data.load("translated:digits,order=authors,size=32", seed=2), torch.arange(4)
    images = set_.render(set_.train, number, number).images
    places = (images * torch.linspace(0, 1, 32)).sum((1, 2, 3))
    assert places.tolist() == pytest.approx([75.837, 56.627, 76.12, 70.167], abs=1e-3)
