"""What every capsule layer shares: the parameters of a routing, and the call of it."""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.errors import TorchcapsError
from torchcaps.routing import (
    Impl,
    Window,
    add_coordinates,
    dynamic_routing,
    em_routing,
    inverted_attention_step,
    inverted_routing,
    self_routing,
    uniform_routing,
    vb_routing,
)
from torchcaps.routing.em import FINAL_LAMBDA

Routing = Literal["dynamic", "uniform", "inverted", "em", "self", "vb"]


FUNCTIONS: dict[Routing, Callable[..., tuple[Any, ...]]] = {
    "dynamic": dynamic_routing,
    "uniform": uniform_routing,
    "inverted": inverted_routing,
    "em": em_routing,
    "self": self_routing,
    "vb": vb_routing,
}


class Capsules(NamedTuple):
    """What a layer returns: parents, their activations where the routing has them, the coupling
    where it was asked for.
    """

    poses: Tensor
    activations: Tensor | None
    coupling: Tensor | None


class RoutedCaps(nn.Module):
    """Transforms and routing of `in_caps` children; layers decide what the children are.

    num_transforms: of which child i takes number i modulo it. matrix: poses are square matrices, in
    place of vectors. squash, leaky, bias: dynamic and uniform routing's. norm, scale: inverted
    attention's. final_lambda: EM's. coordinates: votes carry where their child stands, on a grid.
    init_std: of the transforms, in place of the routing's own. route_std: of self-routing's route
    weights, which start at zero in its authors' code.
    """

    def __init__(
        self,
        in_caps: int,
        in_dim: int,
        out_caps: int,
        out_dim: int,
        num_transforms: int,
        *,
        routing: Routing = "dynamic",
        num_iters: int = 3,
        matrix: bool = False,
        squash: bool = True,
        leaky: bool = False,
        bias: bool = False,
        norm: bool = True,
        scale: bool = True,
        coordinates: bool = False,
        final_lambda: float = FINAL_LAMBDA,
        init_std: float | None = None,
        route_std: float = 0.0,
        impl: Impl = "auto",
    ):
        super().__init__()
        self.routing: Routing = routing
        self.function = FUNCTIONS[routing]
        self.impl: Impl = impl
        self.num_iters, self.squash, self.leaky, self.scale = num_iters, squash, leaky, scale
        self.coordinates, self.final_lambda = coordinates, final_lambda
        if (bias or leaky) and routing not in ("dynamic", "uniform"):
            raise TorchcapsError(f"{routing} routing has no bias and is not leaky.")
        if coordinates and routing == "self":
            raise TorchcapsError("Self-routing scores the pose itself and takes no coordinates.")
        side = math.isqrt(in_dim)
        if matrix and (side * side != in_dim or in_dim != out_dim):
            raise TorchcapsError(
                f"Matrix poses are square and keep their size: in_dim={in_dim}, out_dim={out_dim}."
            )
        size = (side, side) if matrix else (in_dim, out_dim)
        self.weight = nn.Parameter(torch.empty(num_transforms, out_caps, *size))
        if init_std is None:
            self._initialise(in_caps, size[0])
        else:
            nn.init.normal_(self.weight, std=init_std)
        self.bias = nn.Parameter(torch.zeros(out_caps, out_dim)) if bias else None
        self.norm = nn.LayerNorm(out_dim) if routing == "inverted" and norm else None
        if routing in ("em", "vb"):
            self.beta_u = nn.Parameter(torch.zeros(out_caps))
            self.beta_a = nn.Parameter(torch.zeros(out_caps))
        if routing == "self":
            self.route_weight = nn.Parameter(torch.zeros(num_transforms, in_dim, out_caps))
            if route_std:
                nn.init.normal_(self.route_weight, std=route_std)
            self.route_bias = nn.Parameter(torch.zeros(num_transforms, out_caps))

    def _initialise(self, in_caps: int, fan: int) -> None:
        num, out_caps = self.weight.shape[:2]
        if self.routing == "inverted":
            nn.init.normal_(self.weight, std=(out_caps / (fan * in_caps)) ** 0.5)
        elif self.routing == "self":
            # The authors' Kaiming initialisation counts parents and their entries into the fan.
            bound = (6 / self.weight[0].numel()) ** 0.5
            nn.init.uniform_(self.weight, -bound, bound)
        elif self.routing in ("em", "vb"):
            nn.init.normal_(self.weight, std=0.3)
        else:
            # Own transforms point anywhere, so their votes cancel; with shared ones they add up,
            # and at the same scale every parent would start saturated and never learn.
            nn.init.normal_(self.weight, std=0.1 * (num / in_caps) ** 0.5)

    def attend(
        self,
        poses: Tensor,
        parents: Tensor | None,
        window: Window | None = None,
        coupling: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """One pass of inverted attention from the parents of the pass before; None: the first.

        Shapes as in `route`, parents as it returns them. For layers that iterate together.
        """
        if self.routing != "inverted":
            raise TorchcapsError(f"{self.routing} routing has no passes that layers can share.")
        parents, shares = inverted_attention_step(
            poses, self.weight, parents,
            scale=self.scale, window=window, coupling=coupling, impl=self.impl,
        )  # fmt: skip
        return parents if self.norm is None else self.norm(parents), shares

    def route(
        self, poses: Tensor, activations: Tensor | None, window: Window | None, coupling: bool
    ) -> Capsules:
        """poses [B,I,D] or [B,H,W,I,D] with a window, activations [B,I] or [B,H,W,I]

        Coordinates need the grid, so with them a dense layer takes [B,H,W,I,D] too.
        """
        weight = self.weight
        if self.coordinates:
            if poses.dim() != 5:
                raise TorchcapsError(
                    f"Coordinates need a grid [B,H,W,I,D], not {list(poses.shape)}."
                )
            poses, weight = add_coordinates(poses, weight)
        if window is None and poses.dim() == 5:
            poses = poses.flatten(1, 3)
            activations = None if activations is None else activations.flatten(1)
        if self.routing in ("em", "self", "vb") and activations is None:
            raise TorchcapsError(f"{self.routing} routing needs the children's activations.")
        common = {"window": window, "coupling": coupling, "impl": self.impl}
        if self.routing == "dynamic" or self.bias is not None or self.leaky:
            options = {"bias": self.bias, "leaky": self.leaky, **common}
            num_iters = self.num_iters if self.routing == "dynamic" else 1
            parents, shares = dynamic_routing(poses, weight, num_iters, self.squash, **options)
            return Capsules(parents, None, shares)
        if self.routing == "uniform":
            parents, shares = uniform_routing(poses, weight, 1, self.squash, **common)
            return Capsules(parents, None, shares)
        if self.routing == "inverted":
            norm = None if self.norm is None else (self.norm.weight, self.norm.bias)
            options = {"norm": norm, "scale": self.scale, **common}
            parents, shares = inverted_routing(poses, weight, self.num_iters, **options)
            return Capsules(parents, None, shares)
        assert activations is not None
        if self.routing == "self":
            routes = (self.route_weight, self.route_bias)
            return Capsules(*self_routing(poses, activations, weight, *routes, **common))
        betas = (self.beta_u, self.beta_a, self.num_iters)
        if self.routing == "vb":
            return Capsules(*vb_routing(poses, activations, weight, *betas, **common))
        common["final_lambda"] = self.final_lambda
        return Capsules(*em_routing(poses, activations, weight, *betas, **common))
