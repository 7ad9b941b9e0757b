import torch

from torchcaps.analysis.robustness import transformed
from torchcaps.layers import Views


def test_views_are_the_image_turned_scaled_and_sheared():
    images = torch.rand(3, 1, 12, 12)
    views = Views((-20.0, 20.0), (0.8,), (0.2,))
    seen = views(images).unflatten(0, (3, views.num_views))
    assert seen.shape == (3, 5, 1, 12, 12)
    wanted = [
        images, transformed(images, "rotation", -20.0), transformed(images, "rotation", 20.0),
        transformed(images, "scale", 0.8), transformed(images, "shear_x", 0.2),
    ]  # fmt: skip
    for view, want in enumerate(wanted):
        torch.testing.assert_close(seen[:, view], want, atol=1e-5, rtol=0)
    assert torch.equal(Views()(images), images)


def test_coordinates_stay_float32_under_autocast():
    images, views = torch.rand(2, 1, 40, 40), Views((12.0,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        seen = views(images)
    torch.testing.assert_close(seen, views(images), atol=0, rtol=0)
    for dtype in (torch.float64, torch.bfloat16):
        assert views.to(dtype)(images.to(dtype)).dtype == dtype
