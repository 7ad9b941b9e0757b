"""Constellations: squares and triangles as points, their models, metric and recipes."""

from torchcaps.papers.generative.constellations import (
    data,
    model,
    point_covers,
    point_scae,
    recipes,
    segments,
)
