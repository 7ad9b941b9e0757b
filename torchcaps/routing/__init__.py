"""Routing functions: poses and transform weights -> parents and coupling coefficients."""

from torchcaps.routing.competition import Compete
from torchcaps.routing.dynamic import dynamic_routing, dynamic_routing_reference
from torchcaps.routing.em import em_routing, em_routing_reference
from torchcaps.routing.equilibrium import Solver, fixed_point
from torchcaps.routing.inverted import (
    inverted_attention_step,
    inverted_attention_step_reference,
    inverted_routing,
)
from torchcaps.routing.self import self_routing, self_routing_reference
from torchcaps.routing.step import Impl, by_rows
from torchcaps.routing.uniform import uniform_routing, uniform_routing_reference
from torchcaps.routing.vb import vb_routing, vb_routing_reference
from torchcaps.routing.window import Window, add_coordinates, form_votes, unfold

__all__ = [
    "Compete",
    "Impl",
    "Solver",
    "Window",
    "add_coordinates",
    "by_rows",
    "dynamic_routing",
    "dynamic_routing_reference",
    "em_routing",
    "em_routing_reference",
    "fixed_point",
    "form_votes",
    "inverted_attention_step",
    "inverted_attention_step_reference",
    "inverted_routing",
    "self_routing",
    "self_routing_reference",
    "unfold",
    "uniform_routing",
    "uniform_routing_reference",
    "vb_routing",
    "vb_routing_reference",
]
