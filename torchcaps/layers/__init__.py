"""Capsule layers, stems and decoders; the routing functions are in `torchcaps.routing`."""

from torchcaps.layers.capsules import ConvCaps, DenseCaps, PointwiseCaps, PrimaryCaps
from torchcaps.layers.decoders import MLPDecoder
from torchcaps.layers.multi_view import Views
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
    router_with,
)
from torchcaps.layers.stems import ConvStack, Normalize, NormStack, ResNetStack, make_backbone

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
    "Normalize",
    "PointwiseCaps",
    "PrimaryCaps",
    "ResNetStack",
    "Router",
    "SelfRouting",
    "Uniform",
    "Views",
    "make_backbone",
    "make_router",
    "router_with",
    "register_router",
]
