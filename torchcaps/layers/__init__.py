"""Layers: parameters and windows; the arithmetic of routing is in `routing`."""

from torchcaps.layers.backbone import Normalise, ResNetStack, make_backbone
from torchcaps.layers.conv import ConvCaps, PointwiseCaps
from torchcaps.layers.decoder import MLPDecoder
from torchcaps.layers.dense import DenseCaps
from torchcaps.layers.primary import PrimaryCaps
from torchcaps.layers.routed import Capsules, Routing
from torchcaps.layers.stem import ConvStack, NormStack
from torchcaps.layers.views import Views

__all__ = [
    "Capsules",
    "ConvCaps",
    "ConvStack",
    "DenseCaps",
    "MLPDecoder",
    "NormStack",
    "Normalise",
    "PointwiseCaps",
    "PrimaryCaps",
    "ResNetStack",
    "Routing",
    "Views",
    "make_backbone",
]
