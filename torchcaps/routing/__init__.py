"""Routing between capsules: poses and transform weights in, parents out; votes stay inside."""

from torchcaps.routing.dynamic import dynamic_routing, dynamic_routing_reference
from torchcaps.routing.uniform import uniform_routing, uniform_routing_reference

__all__ = [
    "dynamic_routing",
    "dynamic_routing_reference",
    "uniform_routing",
    "uniform_routing_reference",
]
