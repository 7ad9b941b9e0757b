"""One small class a routing: its options, its parameters, how its transforms start, its call.

A layer takes a router by name or as an object, `DenseCaps(…, routing="em")` or
`routing=EM(num_iters=2)`. A router holds options alone, so one object serves many layers; what it
learns belongs to the layer. A new routing is a subclass under `@register_router`, and nothing else
in the library has to know of it.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from torchcaps.errors import Misused, nearest
from torchcaps.routing import (
    Compete,
    Impl,
    Window,
    dynamic_routing,
    em_routing,
    inverted_attention_step,
    inverted_routing,
    self_routing,
    uniform_routing,
    vb_routing,
)
from torchcaps.routing.em import FINAL_LAMBDA


class Capsules(NamedTuple):
    """A layer of capsules: poses [B,…,J,E], activations [B,…,J], coupling [B,…,I,J] with the layer
    below. Activations are None where the routing has none, coupling where nobody asked for it, and
    poses for class capsules that carry none.
    """

    poses: Tensor
    activations: Tensor | None = None
    coupling: Tensor | None = None


# torch knows tuples with names; the name is for files that torch.export writes
_pytree._register_namedtuple(Capsules, serialized_type_name="torchcaps.Capsules")


@dataclass(frozen=True)
class Sizes:
    """What a router must know of the layer that it makes parameters for."""

    in_caps: int
    """Children of one parent: all of a dense layer's, or those in a window."""
    in_dim: int
    out_caps: int
    out_dim: int
    num_transforms: int
    columns: int
    """Entries of a child's pose that one row of a transform takes: all of a vector, or one row of
    a matrix."""


@dataclass(frozen=True)
class Router:
    """The options of a routing. Subclasses say what it needs, makes and does."""

    name: ClassVar[str] = ""
    function: ClassVar[Callable[..., tuple[Any, ...]]]
    """The routing itself, where one goes to read it."""
    activations: ClassVar[bool] = False
    """Whether it reads the children's activations and gives the parents theirs."""
    coordinates: ClassVar[bool] = True
    """Whether votes may carry where their child stands."""
    matrices: ClassVar[bool] = False
    """Whether its authors have matrices as poses."""

    def parts(self, sizes: Sizes) -> dict[str, nn.Parameter | nn.Module]:
        """What the layer learns beside its transforms, by the name that it has there."""
        del sizes
        return {}

    def start(self, weight: Tensor, sizes: Sizes) -> None:
        """Fill the transforms [N,J,D,E] before training.

        Own transforms point anywhere, so their votes cancel; with shared ones they add up, and at
        the same scale every parent would start saturated and never learn.
        """
        nn.init.normal_(weight, std=0.1 * (sizes.num_transforms / sizes.in_caps) ** 0.5)

    def __call__(
        self,
        layer: Any,
        poses: Tensor,
        activations: Tensor | None,
        weight: Tensor,
        *,
        window: Window | None,
        coupling: bool,
        impl: Impl,
    ) -> Capsules:
        """Parents of these children; `layer` has the parts under their names.

        poses [B,I,D], or [B,H,W,I,D] with a window; activations [B,I] or [B,H,W,I]
        """
        raise NotImplementedError


R = TypeVar("R", bound=type[Router])
_ROUTERS: dict[str, type[Router]] = {}


def register_router(name: str) -> Callable[[R], R]:
    """Make a router known by a name, so that layers, models and recipes can ask for it."""

    def add(kind: R) -> R:
        kind.name = name
        _ROUTERS[name] = kind
        return kind

    return add


def routers() -> dict[str, type[Router]]:
    return dict(sorted(_ROUTERS.items()))


def make_router(routing: str | Router, **options: Any) -> Router:
    """A router by its name; of the options it takes those that it has."""
    if isinstance(routing, Router):
        return routing
    if routing not in _ROUTERS:
        raise Misused(f"There is no routing {routing!r}. {nearest(routing, list(_ROUTERS))}")
    kind = _ROUTERS[routing]
    own = {f.name for f in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in options.items() if name in own})


@register_router("dynamic")
@dataclass(frozen=True)
class Dynamic(Router):
    """Dynamic routing by agreement (Sabour et al. 2017)."""

    function = staticmethod(dynamic_routing)
    num_iters: int = 3
    squash: bool = True
    bias: bool = False
    """Whether each parent has a bias that is added before the squash."""

    def parts(self, sizes: Sizes) -> dict[str, nn.Parameter | nn.Module]:
        shape = sizes.out_caps, sizes.out_dim
        return {"bias": nn.Parameter(torch.zeros(shape))} if self.bias else {}

    def __call__(self, layer, poses, activations, weight, **common) -> Capsules:
        bias = layer.bias if self.bias else None
        parents, shares = dynamic_routing(
            poses, weight, self.num_iters, self.squash, bias=bias, **common
        )
        return Capsules(parents, None, shares)


@register_router("uniform")
@dataclass(frozen=True)
class Uniform(Router):
    """No routing: every child gives every parent the same share."""

    function = staticmethod(uniform_routing)
    squash: bool = True

    def __call__(self, layer, poses, activations, weight, **common) -> Capsules:
        parents, shares = uniform_routing(poses, weight, 1, self.squash, **common)
        return Capsules(parents, None, shares)


@register_router("inverted")
@dataclass(frozen=True)
class Inverted(Router):
    """Inverted dot-product attention (Tsai et al. 2020); layers may take its passes together."""

    function = staticmethod(inverted_routing)
    num_iters: int = 2
    norm: bool = True
    """Whether parents go through a LayerNorm after each pass."""
    scale: bool = True
    """Whether agreement is divided by the square root of the pose's size, as its authors do."""

    def parts(self, sizes: Sizes) -> dict[str, nn.Parameter | nn.Module]:
        return {"norm": nn.LayerNorm(sizes.out_dim)} if self.norm else {}

    def start(self, weight: Tensor, sizes: Sizes) -> None:
        std = (sizes.out_caps / (sizes.columns * sizes.in_caps)) ** 0.5
        nn.init.normal_(weight, std=std)

    def __call__(self, layer, poses, activations, weight, **common) -> Capsules:
        norm = (layer.norm.weight, layer.norm.bias) if self.norm else None
        parents, shares = inverted_routing(
            poses, weight, self.num_iters, norm=norm, scale=self.scale, **common
        )
        return Capsules(parents, None, shares)

    def attend(self, layer: Any, poses: Tensor, parents: Tensor | None, **common: Any) -> Capsules:
        """One pass from the parents of the pass before; None: the first, uniform one."""
        found, shares = inverted_attention_step(
            poses, layer.weight, parents, scale=self.scale, **common
        )
        return Capsules(layer.norm(found) if self.norm else found, None, shares)


@dataclass(frozen=True)
class _Mixture(Router):
    """What EM and variational Bayes share: each parent has two costs that it learns, and parents
    compete for a child.
    """

    activations = True
    matrices = True
    num_iters: int = 3
    std: float = 0.3
    """Standard deviation of the transforms at the start."""
    compete: Compete = field(default="all", kw_only=True)
    """Which parents share a child that several windows see: all that do, or those of each window by
    themselves."""

    def parts(self, sizes: Sizes) -> dict[str, nn.Parameter | nn.Module]:
        return {name: nn.Parameter(torch.zeros(sizes.out_caps)) for name in ("beta_u", "beta_a")}

    def start(self, weight: Tensor, sizes: Sizes) -> None:
        nn.init.normal_(weight, std=self.std)


@register_router("em")
@dataclass(frozen=True)
class EM(_Mixture):
    """EM routing (Hinton, Sabour, Frosst 2018)."""

    function = staticmethod(em_routing)
    final_lambda: float = FINAL_LAMBDA
    """Inverse temperature that the iterations approach."""

    def __call__(self, layer, poses, activations, weight, **common) -> Capsules:
        betas = (layer.beta_u, layer.beta_a, self.num_iters)
        common |= {"final_lambda": self.final_lambda, "compete": self.compete}
        return Capsules(*em_routing(poses, activations, weight, *betas, **common))


@register_router("vb")
@dataclass(frozen=True)
class VB(_Mixture):
    """Variational Bayes routing (Ribeiro, Leontidis, Kollias 2020)."""

    function = staticmethod(vb_routing)

    def __call__(self, layer, poses, activations, weight, **common) -> Capsules:
        betas = (layer.beta_u, layer.beta_a, self.num_iters)
        options = {**common, "compete": self.compete}
        return Capsules(*vb_routing(poses, activations, weight, *betas, **options))


@register_router("self")
@dataclass(frozen=True)
class SelfRouting(Router):
    """Self-routing (Hahn, Pyeon, Kim 2019): every child decides alone."""

    function = staticmethod(self_routing)
    activations = True
    coordinates = False  # it scores the pose itself
    route_std: float = 0.0
    """Standard deviation of the route weights at the start; its authors have 0."""

    def parts(self, sizes: Sizes) -> dict[str, nn.Parameter | nn.Module]:
        route = torch.zeros(sizes.num_transforms, sizes.in_dim, sizes.out_caps)
        if self.route_std:
            nn.init.normal_(route, std=self.route_std)
        bias = torch.zeros(sizes.num_transforms, sizes.out_caps)
        return {"route_weight": nn.Parameter(route), "route_bias": nn.Parameter(bias)}

    def start(self, weight: Tensor, sizes: Sizes) -> None:
        # The authors' Kaiming initialisation counts parents and their entries into the fan.
        bound = (6 / weight[0].numel()) ** 0.5
        nn.init.uniform_(weight, -bound, bound)

    def __call__(self, layer, poses, activations, weight, **common) -> Capsules:
        routes = (layer.route_weight, layer.route_bias)
        return Capsules(*self_routing(poses, activations, weight, *routes, **common))
