"""Layers: parameters and windows; the arithmetic of routing is in `routing`."""

from torchcaps.layers.backbone import Normalise, ResNetStack, make_backbone
from torchcaps.layers.conv import ConvCaps, PointwiseCaps
from torchcaps.layers.decoder import MLPDecoder
from torchcaps.layers.dense import DenseCaps
from torchcaps.layers.primary import PrimaryCaps
from torchcaps.layers.routers import (
    EM,
    VB,
    Capsules,
    Dynamic,
    Inverted,
    Router,
    SelfRouting,
    Uniform,
    make_router,
    register_router,
)
from torchcaps.layers.stem import ConvStack, NormStack
from torchcaps.layers.views import Views

__all__ = [
    "EM",
    "VB",
    "Capsules",
    "ConvCaps",
    "ConvStack",
    "DenseCaps",
    "Dynamic",
    "Inverted",
    "MLPDecoder",
    "NormStack",
    "Normalise",
    "PointwiseCaps",
    "PrimaryCaps",
    "ResNetStack",
    "Router",
    "SelfRouting",
    "Uniform",
    "Views",
    "make_backbone",
    "make_router",
    "register_router",
]
