"""Frames: quarter rotations are exact, the best frame is chosen, representations are invariant."""

import pytest
import torch

import torchcaps
from tests.models.test_registry import small
from torchcaps.layers.rotations import inverse, look, rotate, rotations


def test_quarter_turns_move_pixels():
    images = torch.rand(4, 2, 7, 7)
    rotated = rotate(images, rotations(4, images))
    for image, after, times in zip(images, rotated, range(4), strict=True):
        torch.testing.assert_close(after, torch.rot90(image, -times, (1, 2)), atol=1e-5, rtol=0)
    back = rotate(rotated, inverse(rotations(4, images)))
    torch.testing.assert_close(back, images, atol=1e-5, rtol=0)


@pytest.mark.parametrize("together", [True, False])
def test_the_best_explained_frame_is_kept(together):
    """Explained best: the view that is brightest in its upper left corner."""
    images = torch.zeros(3, 1, 6, 6)
    images[0, 0, 0, 0] = images[1, 0, 0, 5] = images[2, 0, 5, 5] = 1
    seen = look(images, 4, lambda image, view, turn: view[:, 0, 0, 0], together)
    assert seen.scores is not None and seen.scores.shape == (3, 4)
    torch.testing.assert_close(seen.views[:, 0, 0, 0], torch.ones(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(rotate(seen.views, seen.turns), images, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["generative-framed", "vae"])
def test_representations_are_rotation_invariant(name):
    torch.manual_seed(0)
    model = small(name)
    config = {**vars(model.config), "frames": 2, "test_frames": 4}
    model = torchcaps.create_model(name, **config).double().eval()
    images = torch.rand(5, 1, 24, 24).double()
    upright, turn = (model.representations(x) for x in (images, torch.rot90(images, 1, (2, 3))))
    for key in set(upright) - {"pixels"}:
        torch.testing.assert_close(upright[key], turn[key], atol=1e-6, rtol=1e-6)
    drawn = model(images).reconstruction
    again = model(torch.rot90(images, 1, (2, 3))).reconstruction
    torch.testing.assert_close(torch.rot90(drawn, 1, (2, 3)), again, atol=1e-6, rtol=1e-6)
    bound, other = (model.bound(x, noise=False) for x in (images, torch.rot90(images, 1, (2, 3))))
    torch.testing.assert_close(bound.terms["image"], other.terms["image"], atol=1e-4, rtol=1e-6)
    assert float(bound.terms["frame"][0]) == pytest.approx(-torch.tensor(4.0).log())
    torch.testing.assert_close(bound.drawn, drawn)


def test_an_oblong_image_keeps_its_shape():
    images = torch.rand(2, 1, 6, 10)
    still = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]).expand(2, -1, -1)
    torch.testing.assert_close(rotate(images, still), images)
