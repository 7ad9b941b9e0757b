"""Batched augmentations against a per-image reference (Pillow, colorsys, loops)."""

import colorsys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance

from torchcaps.data import Augment, Batch, Loader, load
from torchcaps.data.augment import (
    TRANSFORMS,
    Affine,
    ColorJitter,
    Crop,
    Erase,
    Flip,
    ResizedCrop,
    Translate,
)
from torchcaps.errors import TorchcapsError, UsageError
from torchcaps.functional import affine_matrix, counter_uniform, warp


def pictures(count=6, side=16, seed=0):
    """Smooth colour images, as float [B,3,H,W] and as Pillow images."""
    noise = torch.rand(count, 3, side + 4, side + 4, generator=torch.Generator().manual_seed(seed))
    smooth = torch.nn.functional.avg_pool2d(noise, 5, 1)
    smooth = (smooth - smooth.amin()) / (smooth.amax() - smooth.amin())
    as_bytes = (smooth * 255).round()
    pil = [Image.fromarray(x.permute(1, 2, 0).numpy().astype(np.uint8)) for x in as_bytes]
    return as_bytes / 255, pil


def array(picture):
    return torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1).float() / 255


@given(st.integers(0, 2**40))
def test_crop_is_pad_then_cut(seed):
    images, pil = pictures()
    transform = Crop(4)
    shift = transform.sample(counter_uniform(seed, torch.arange(6), 2), images)
    assert shift.abs().max() <= 4
    ours = transform.apply(images, shift)
    for i, picture in enumerate(pil):
        padded = Image.new("RGB", (24, 24))
        padded.paste(picture, (4, 4))
        left, top = 4 - int(shift[i, 0]), 4 - int(shift[i, 1])
        expected = padded.crop((left, top, left + 16, top + 16))
        torch.testing.assert_close(ours[i], array(expected), atol=1e-6, rtol=0)


def test_every_translation_is_sampled():
    shift = Translate(2).sample(counter_uniform(0, torch.arange(2000), 2), torch.empty(0))
    pairs, counts = shift.unique(dim=0, return_counts=True)
    assert len(pairs) == 25 and counts.min() > 40


def test_flip_against_pillow():
    images, pil = pictures()
    mirrored = torch.tensor([True, False] * 3)
    ours = Flip().apply(images, mirrored)
    for i, picture in enumerate(pil):
        how = Image.Transpose.FLIP_LEFT_RIGHT
        expected = picture.transpose(how) if mirrored[i] else picture
        torch.testing.assert_close(ours[i], array(expected), atol=1e-6, rtol=0)
    share = Flip(0.25).sample(counter_uniform(0, torch.arange(4000), 1), images).float().mean()
    assert float(share) == pytest.approx(0.25, abs=0.03)


def test_affine_alone_changes_nothing():
    images, _ = pictures()
    matrix = Affine().sample(counter_uniform(0, torch.arange(6), 5), images)
    assert torch.equal(matrix, torch.eye(2, 3).expand(6, 2, 3))


@given(st.integers(0, 2**40))
def test_affine_against_pillow(seed):
    images, pil = pictures(side=33)
    transform = Affine(degrees=45, shift=3, min_scale=0.8, max_scale=1.3, shear=0.2)
    matrix = transform.sample(counter_uniform(seed, torch.arange(6), 5), images)
    ours = transform.apply(images, matrix)
    for i in range(6):
        compare_with_pillow(ours[i], pil[i], matrix[i])


def compare_with_pillow(ours, picture, matrix):
    """Pillow maps output pixels to input pixels; borders are treated differently, so left out."""
    side = picture.size[0]
    centre = np.array([[1, 0, -side / 2], [0, 1, -side / 2], [0, 0, 1]])
    forward = np.vstack([matrix.double().numpy(), [0, 0, 1]])
    inverse = np.linalg.inv(centre) @ np.linalg.inv(forward) @ centre
    size, how = (side, side), Image.Resampling.BILINEAR
    flat = tuple(inverse[:2].ravel())
    theirs = array(picture.transform(size, Image.Transform.AFFINE, flat, how))
    rows, columns = np.mgrid[0:side, 0:side] + 0.5
    x = inverse[0, 0] * columns + inverse[0, 1] * rows + inverse[0, 2]
    y = inverse[1, 0] * columns + inverse[1, 1] * rows + inverse[1, 2]
    inside = torch.from_numpy((x > 1) & (x < side - 1) & (y > 1) & (y < side - 1))
    assert inside.sum() > 50
    torch.testing.assert_close(ours[:, inside], theirs[:, inside], atol=1.5 / 255, rtol=0)


@given(st.integers(0, 2**40))
def test_resized_crop_against_pillow(seed):
    images, pil = pictures(side=33)
    transform = ResizedCrop(0.3)
    matrix = transform.sample(counter_uniform(seed, torch.arange(6), 4), images)
    ours = transform.apply(images, matrix)
    for i in range(6):
        compare_with_pillow(ours[i], pil[i], matrix[i])
    width, height = 1 / matrix[:, 0, 0], 1 / matrix[:, 1, 1]
    assert (width <= 1.0001).all() and (height <= 1.0001).all()
    assert (width * height >= 0.3 * 0.9).all()  # clamping a side at 1 may cut a little area
    # the rectangle lies inside the image
    centre = -matrix[:, :, 2] * torch.stack([width, height], -1)
    assert (centre.abs() + torch.stack([width, height], -1) * 33 / 2 <= 33 / 2 + 1e-3).all()


@pytest.mark.parametrize(
    ("column", "enhance"),
    [(0, ImageEnhance.Brightness), (1, ImageEnhance.Contrast), (2, ImageEnhance.Color)],
)
@pytest.mark.parametrize("factor", [0.5, 0.9, 1.4])
def test_color_jitter_against_pillow(column, enhance, factor):
    images, pil = pictures()
    parameters = torch.tensor([1.0, 1.0, 1.0, 0.0]).repeat(6, 1)
    parameters[:, column] = factor
    ours = ColorJitter(0.5, 0.5, 0.5, 0.0).apply(images, parameters)
    for i, picture in enumerate(pil):
        expected = array(enhance(picture).enhance(factor))
        torch.testing.assert_close(ours[i], expected, atol=2.5 / 255, rtol=0)


@pytest.mark.parametrize("turn", [-0.5, -0.1, 0.0, 0.25])
def test_hue_against_colorsys(turn):
    images, _ = pictures(2, 5)
    parameters = torch.tensor([[1.0, 1.0, 1.0, turn]] * 2)
    ours = ColorJitter(hue=0.5).apply(images, parameters)
    for i in range(2):
        for y in range(5):
            for x in range(5):
                h, s, v = colorsys.rgb_to_hsv(*images[i, :, y, x].tolist())
                expected = colorsys.hsv_to_rgb((h + turn) % 1, s, v)
                assert ours[i, :, y, x].tolist() == pytest.approx(expected, abs=1e-5)


@given(st.integers(0, 2**40))
def test_erase_against_a_loop(seed):
    images = torch.rand(8, 3, 12, 15) + 0.1
    transform = Erase(p=0.7, area=0.4)
    box = transform.sample(counter_uniform(seed, torch.arange(8), 5), images)
    ours = transform.apply(images, box)
    for i in range(8):
        expected = images[i].clone()
        left, top, right, bottom = box[i].tolist()
        assert 0 <= left <= right <= 15 and 0 <= top <= bottom <= 12
        expected[:, top:bottom, left:right] = 0
        assert torch.equal(ours[i], expected)


def test_a_chain_is_the_same_for_an_image_in_any_batch():
    images = torch.rand(10, 3, 16, 16)
    chain = Augment(("crop:2", "flip", "affine:degrees=10", "color-jitter:0.2", "erase"))
    number = torch.arange(100, 110)
    whole = chain(Batch(images, torch.arange(10)), 5, number)
    part = chain(Batch(images[3:5], torch.arange(3, 5)), 5, number[3:5])
    torch.testing.assert_close(whole.images[3:5], part.images)
    other = chain(Batch(images, torch.arange(10)), 6, number)
    assert not torch.equal(whole.images, other.images)


def test_targets_move_with_the_image():
    images = torch.rand(4, 1, 8, 8)
    batch = Batch(images, torch.zeros(4, 2).long(), torch.stack([images, images], 1))
    moved = Augment(("translate:3", "flip"))(batch, 0, torch.arange(4))
    assert moved.targets is not None
    assert torch.equal(moved.targets[:, 1], moved.images)


@pytest.mark.parametrize(
    ("name", "words"),
    [("flop", "Did you mean 'flip'"), ("crop", "crop:PIXELS"), ("crop:x", "not of type int")],
)
def test_bad_names_are_explained(name, words):
    with pytest.raises(TorchcapsError, match=words):
        Augment((name,))


@pytest.mark.parametrize(
    "text",
    ["resized-crop:-1", "affine:nan", "flip:7", "crop:-4", "erase:p=2", "affine:min_scale=0"],
)
def test_options_out_of_range_raise(text):
    with pytest.raises(UsageError, match="does not lie between"):
        Augment((text,))


@pytest.mark.parametrize(
    "name",
    ["rotated:digits,degrees=nan", "affnist-like:digits,size=-5", "centred:digits,size=9999"],
)
def test_data_set_options_out_of_range_raise(name):
    with pytest.raises(UsageError, match="does not lie between"):
        load(name)


def test_a_resized_crop_reaches_every_corner():
    """A quarter of the image: its corners come to the corners of the result, its center too."""
    images = torch.zeros(3, 1, 20, 20)
    u = torch.tensor([[0.0, 0.5, 0.0, 0.0], [0.0, 0.5, 1.0, 0.0], [0.0, 0.5, 0.5, 0.5]])
    matrix = ResizedCrop(min_area=0.25).sample(u, images)
    expected = [[[2, 0, x], [0, 2, y]] for x, y in ((10, 10), (-10, 10), (0, 0))]
    torch.testing.assert_close(matrix, torch.tensor(expected, dtype=torch.float32))


@pytest.mark.parametrize("seed", [0, 1])
def test_augmentation_has_other_random_numbers_than_generated_images(seed, monkeypatch):
    """Both count by sample; with the same numbers every rotation to the left would be flipped."""
    seen = []

    class Spy(Flip):
        def sample(self, u, images):
            seen.append(u)
            return super().sample(u, images)

    monkeypatch.setitem(TRANSFORMS, "spy", Spy)
    loader = Loader(load("rotated:digits", seed=seed), 1000, seed=seed, augment=Augment(("spy",)))
    loader.batch(0)
    order = loader._permutation(0)[:1000]
    for key in (seed, 3 * seed):
        drawn = counter_uniform(key, order, 1)[:, 0]
        assert torch.corrcoef(torch.stack([drawn, seen[0][:, 0]]))[0, 1].abs() < 0.1


def test_a_resized_crop_is_wide_or_tall():
    """Ramps along both axes show how much of an image a crop has kept."""
    ramp = torch.linspace(0, 1, 32)
    images = torch.stack([ramp.expand(32, 32), ramp[:, None].expand(32, 32)])[None]
    number = torch.arange(200)
    batch = Batch(images.expand(200, -1, -1, -1), number)
    crops = Augment(("resized-crop",))(batch, 0, number).images.flatten(2)
    width, height = (crops.amax(2) - crops.amin(2)).unbind(1)
    ratio = (width / height).log()
    assert ratio.max() > 0.2 and ratio.min() < -0.2


def test_a_rotated_batch_knows_its_angles():
    """Rotated back by its angle, an image is as it was in the middle."""
    images, _ = pictures()
    labels, number = torch.arange(len(images)), torch.arange(len(images))
    assert Augment(("flip",))(Batch(images, labels), 0, number).rotation is None
    batch = Augment(("flip:0", "rotate:180"))(Batch(images, labels), 3, number)
    assert batch.rotation.abs().max() > 1
    zero, one = torch.zeros(len(images)), torch.ones(len(images), 2)
    back = affine_matrix(-batch.rotation.rad2deg(), one, zero, torch.zeros(len(images), 2))
    middle = warp(batch.images, back, images.shape[2:])[:, :, 5:11, 5:11]
    away, moved = (middle - x[:, :, 5:11, 5:11] for x in (images, batch.images))
    assert away.abs().mean() < 0.3 * moved.abs().mean()
    before = Batch(images, labels, rotation=torch.ones(len(images)))
    again = Augment(("flip:0", "rotate:180"))(before, 3, number)
    torch.testing.assert_close(again.rotation, batch.rotation + 1)
