import numpy as np

from torchcaps.analysis.matplotlib_figures import line_plot, tile


def test_tile_places_images():
    images = np.random.default_rng(0).random((2, 3, 1, 4, 5))
    canvas = tile(images)
    assert canvas.shape == (9, 17, 4)
    np.testing.assert_allclose(canvas[5:9, 6:11, 0], images[1, 1, 0])
    assert (canvas[:, 5, 3] == 0).all() and (canvas[4, :, 3] == 0).all()  # clear between them


def test_a_single_point_has_a_marker():
    (axes,) = line_plot({"a": ([1], [0.5])}, "x", "y").axes
    assert axes.lines[0].get_marker() == "o" and axes.get_legend() is None
