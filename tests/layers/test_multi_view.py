import torch

from torchcaps.layers import Views
from torchcaps.metrics.robustness import transformed


def test_views_are_the_image_rotated_scaled_and_sheared():
    images = torch.rand(3, 1, 12, 12)
    views = Views((-20.0, 20.0), (0.8,), (0.2,))
    seen = views(images).unflatten(0, (3, views.num_views))
    assert seen.shape == (3, 5, 1, 12, 12)
    expected = [
        images, transformed(images, "rotation", -20.0), transformed(images, "rotation", 20.0),
        transformed(images, "scale", 0.8), transformed(images, "shear_x", 0.2),
    ]  # fmt: skip
    for view, want in enumerate(expected):
        torch.testing.assert_close(seen[:, view], want, atol=1e-5, rtol=0)
    assert torch.equal(Views()(images), images)


def test_coordinates_stay_float32_under_autocast():
    images, views = torch.rand(2, 1, 40, 40), Views((12.0,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        seen = views(images)
    torch.testing.assert_close(seen, views(images), atol=0, rtol=0)
    for dtype in (torch.float64, torch.bfloat16):
        assert views.to(dtype)(images.to(dtype)).dtype == dtype


def test_views_jitter_in_training_only():
    images, still = torch.rand(5, 1, 12, 12), Views((30.0,))
    views = Views((30.0,), jitter=(4.0, 0.1, 0.05))
    torch.manual_seed(0)
    first, second = views(images), views(images)
    assert not torch.equal(first, second)
    turned = torch.cat([views.matrices(2000) for _ in range(3)]).unflatten(0, (-1, 2))
    degrees = torch.atan2(-turned[..., 1, 0], turned[..., 0, 0]).rad2deg()
    assert (degrees[:, 0].abs() <= 4).all() and degrees[:, 0].abs().max() > 3.9
    assert ((degrees[:, 1] - 30).abs() <= 4.01).all()
    sizes = turned[..., :, 0].norm(dim=-1)
    assert sizes.min() >= 0.9 - 1e-4 and sizes.max() <= 1.1 + 1e-4 and sizes.std() > 0.05
    assert torch.equal(views.eval()(images), still(images))
    assert not torch.equal(Views(jitter=(4.0, 0.0, 0.0))(images), images)
