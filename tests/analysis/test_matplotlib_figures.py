import numpy as np
import pytest
from matplotlib import rc_context

from torchcaps.analysis.charts import Bars, Grid, Line, Lines, Maps, Matrix, Shots
from torchcaps.analysis.matplotlib_figures import save_figure, styled_plot, tile


def test_tile_places_images():
    images = np.random.default_rng(0).random((2, 3, 1, 4, 5))
    canvas = tile(images)
    assert canvas.shape == (9, 17, 4)
    np.testing.assert_allclose(canvas[5:9, 6:11, 0], images[1, 1, 0])
    assert (canvas[:, 5, 3] == 0).all() and (canvas[4, :, 3] == 0).all()  # clear between them


def test_a_single_point_has_a_marker():
    (axes,) = styled_plot({"a": ([1], [0.5], {})}, "x", "y").axes
    assert axes.lines[0].get_marker() == "o" and axes.get_legend() is None


@pytest.mark.parametrize(
    "chart",
    [
        Bars(["a", "$\\frac{$"], np.array([1.0, 50.0]), "x"),
        Shots(np.zeros((1, 1, 4, 4)), ["true: $\\frac{$"], ""),
        Matrix(np.eye(2), ["$\\frac{$", "b"], ["$_$", "b"], "x", "y", "w", written=True),
        Maps(np.zeros((1, 4, 4)), np.ones((1, 4, 4)), ["$\\frac{$"], "w"),
        Grid(np.zeros((1, 1, 1, 4, 4)), ["$\\frac{$"], ["$_$"]),
        Lines({"$\\frac{$": Line([0, 1], [0, 1]), "b": Line([0, 1], [0, 1])}, "x", "y"),
    ],
    ids=lambda chart: chart.kind,
)
def test_names_with_dollar_signs_are_no_formulas(chart, tmp_path):
    with rc_context({"svg.fonttype": "none"}):
        save_figure(chart.figure(), tmp_path / "figure.svg")
    assert "$\\frac{$" in (tmp_path / "figure.svg").read_text()
