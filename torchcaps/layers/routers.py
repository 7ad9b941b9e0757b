"""Routers: one class per routing with its options, parameters, initial weights and call.

A layer takes a router by name or as an object, `DenseCaps(…, routing="em")` or
`routing=EM(num_iters=2)`. A router holds only options, so several layers can share it; its
parameters belong to the layer. To add a routing, subclass `Router` and decorate the class with
`@register_router`; no other file changes.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from torchcaps.errors import UsageError, nearest
from torchcaps.registry import Registry
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
    """Output of a capsule layer: poses [B,…,J,E], activations [B,…,J], and coupling [B,…,I,J] with
    the layer below. Activations are None if the routing has none, coupling unless requested, and
    poses for class capsules without poses.

    >>> Capsules(torch.rand(2, 10, 16))
    Capsules(poses=[2,10,16])
    """

    poses: Tensor
    activations: Tensor | None = None
    coupling: Tensor | None = None

    def __repr__(self) -> str:
        """Shapes, not tensors."""
        pairs = zip(self._fields, self, strict=True)
        shown = (f"{name}={shapes(value)}" for name, value in pairs if value is not None)
        return f"Capsules({', '.join(shown)})"


def shapes(value: Any) -> str:
    """A tensor's shape, and those of tensors in tuples: [2,10]."""
    if isinstance(value, Tensor):
        return str(list(value.shape)).replace(" ", "")
    if type(value) is tuple:
        return f"({', '.join(map(shapes, value))})"
    return repr(value)


# torch supports named tuples; files of torch.export need the name
_pytree._register_namedtuple(Capsules, serialized_type_name="torchcaps.Capsules")


@dataclass(frozen=True)
class Sizes:
    """Sizes of a layer, from which a router makes its parameters."""

    in_caps: int
    """Children per parent: all children of a dense layer, or those of one window."""
    in_dim: int
    out_caps: int
    out_dim: int
    num_transforms: int
    columns: int
    """Input size of a transform: the pose size of vectors, or the row size of matrices."""


@dataclass(frozen=True, kw_only=True)
class Router:
    """Options of a routing; subclasses add its parameters and its call.

    >>> Dynamic(num_iters=2)
    Dynamic(num_iters=2, squash=True, bias=False)
    """

    name: ClassVar[str] = ""
    function: ClassVar[Callable[..., tuple[Any, ...]]]
    """The routing function."""
    activations: ClassVar[bool] = False
    """Reads the children's activations and returns activations of the parents."""
    coordinates: ClassVar[bool] = True
    """Supports coordinate addition."""
    matrices: ClassVar[bool] = False
    """Uses matrices as poses in its paper."""

    def parts(self, sizes: Sizes) -> dict[str, nn.Parameter | nn.Module]:
        """Parameters of the layer besides its transforms, by attribute name."""
        del sizes
        return {}

    def start(self, weight: Tensor, sizes: Sizes) -> None:
        """Initialize the transforms [N,J,D,E].

        Votes of separate transforms cancel; those of shared transforms add up, and with the same
        std every parent would be saturated and not learn.
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
        """Route children to parents; `layer` has the parameters as attributes.

        poses [B,I,D], or [B,H,W,I,D] with a window; activations [B,I] or [B,H,W,I]
        """
        raise NotImplementedError


R = TypeVar("R", bound=type[Router])
ROUTERS = Registry[type[Router]]("routing", "routings")


def register_router(name: str) -> Callable[[R], R]:
    """Register a router under a name for layers, models and recipes.

    >>> @register_router("mean")
    ... class Mean(Uniform):
    ...     "Uniform routing under another name."
    >>> make_router("mean").name
    'mean'
    >>> ROUTERS.pop("mean") is Mean
    True
    """

    def add(router: R) -> R:
        router.name = name
        ROUTERS[name] = router
        return router

    return add


def make_router(routing: str | Router, **options: Any) -> Router:
    """Make a router by name with options: `make_router("em", num_iters=2)`.

    >>> make_router("em", num_iters=2).num_iters
    2
    """
    if isinstance(routing, Router):
        return routing
    router = ROUTERS.find(routing)
    names = [f.name for f in dataclasses.fields(router)]
    for name in options:
        if name not in names:
            raise UsageError(f"{router.__name__} has no option {name!r}. {nearest(name, names)}")
    return router(**options)


def router_with(routing: str, **options: Any) -> Router:
    """Make a router and ignore options that it does not have, for models with several routings.

    >>> router_with("uniform", num_iters=2).name  # it has no iterations
    'uniform'
    """
    names = {f.name for f in dataclasses.fields(ROUTERS.find(routing))}
    return make_router(routing, **{n: value for n, value in options.items() if n in names})


@register_router("dynamic")
@dataclass(frozen=True, kw_only=True)
class Dynamic(Router):
    """Dynamic routing by agreement (Sabour et al. 2017).

    >>> from torchcaps.layers import DenseCaps
    >>> layer = DenseCaps(in_caps=6, in_dim=4, out_caps=3, out_dim=5, routing=Dynamic(num_iters=2))
    >>> layer
    DenseCaps(6 of 4 -> 3 of 5, Dynamic(num_iters=2, squash=True, bias=False))
    """

    function = staticmethod(dynamic_routing)
    num_iters: int = 3
    squash: bool = True
    bias: bool = False
    """Add a bias to each parent before the squash."""

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
@dataclass(frozen=True, kw_only=True)
class Uniform(Router):
    """Uniform routing: every child gives every parent the same share.

    >>> Uniform(squash=False)
    Uniform(squash=False)
    """

    function = staticmethod(uniform_routing)
    squash: bool = True

    def __call__(self, layer, poses, activations, weight, **common) -> Capsules:
        parents, shares = uniform_routing(poses, weight, 1, self.squash, **common)
        return Capsules(parents, None, shares)


@register_router("inverted")
@dataclass(frozen=True, kw_only=True)
class Inverted(Router):
    """Inverted dot-product attention (Tsai et al. 2020); layers can iterate concurrently.

    >>> Inverted(num_iters=3).scale
    True
    """

    function = staticmethod(inverted_routing)
    num_iters: int = 2
    norm: bool = True
    """Apply a LayerNorm to the parents after each pass."""
    scale: bool = True
    """Divide agreement by sqrt(pose size), as in the authors' code."""

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
        """One pass from the parents of the previous pass; None: the first, uniform pass."""
        parents, shares = inverted_attention_step(
            poses, layer.weight, parents, scale=self.scale, **common
        )
        return Capsules(layer.norm(parents) if self.norm else parents, None, shares)


@dataclass(frozen=True, kw_only=True)
class _Mixture(Router):
    """Options of EM and variational Bayes: two learned costs per parent, and competition."""

    activations = True
    matrices = True
    num_iters: int = 3
    std: float = 0.3
    """Standard deviation of the initial transforms."""
    compete: Compete = "all"
    """Normalize a child over the parents of all windows that see it, or within each window; of EM
    also over places, see `torchcaps.routing.competition`."""
    beta_u: float = 0.0
    beta_a: float = 0.0
    """Initial costs."""

    def parts(self, sizes: Sizes) -> dict[str, nn.Parameter | nn.Module]:
        starts = {"beta_u": self.beta_u, "beta_a": self.beta_a}
        return {n: nn.Parameter(torch.full((sizes.out_caps,), v)) for n, v in starts.items()}

    def start(self, weight: Tensor, sizes: Sizes) -> None:
        nn.init.normal_(weight, std=self.std)


@register_router("em")
@dataclass(frozen=True, kw_only=True)
class EM(_Mixture):
    """EM routing (Hinton, Sabour, Frosst 2018).

    >>> EM(num_iters=2).compete
    'all'
    """

    function = staticmethod(em_routing)
    final_lambda: float = FINAL_LAMBDA
    """Inverse temperature in the limit of many iterations."""
    damping: float = 0.0
    """Share of the previous mean in a mean."""
    log_variance: bool = False
    """Use the logarithm of the variance in the cost, not of the standard deviation."""
    mass_floor: float = 0.0
    """Added to the mass of a parent."""
    scale_u: float = 1.0
    scale_a: float = 1.0
    """Factors of the learned costs; without a large one Adam hardly moves an activation's logit."""

    @classmethod
    def official(cls, num_iters: int = 3, *, classes: bool = False) -> "EM":
        """EM routing as its authors' program runs it, in a convolutional or in the class layer."""
        layer = {"std": 0.3, "mass_floor": 1e-7, "beta_u": 0.5, "beta_a": -0.5}
        if classes:
            layer = {"std": 0.01, "mass_floor": 1e-5, "beta_u": 2.0, "beta_a": -1.0}
            layer["final_lambda"] = FINAL_LAMBDA / 4
        return cls(
            num_iters=num_iters,
            damping=0.1,
            log_variance=True,
            scale_u=math.log(2 * math.pi) + 1,
            scale_a=5000.0,
            compete="window" if classes else "released",
            **layer,
        )

    def __call__(self, layer, poses, activations, weight, **common) -> Capsules:
        betas = (self.scale_u * layer.beta_u, self.scale_a * layer.beta_a, self.num_iters)
        names = ("final_lambda", "compete", "damping", "log_variance", "mass_floor")
        common |= {name: getattr(self, name) for name in names}
        return Capsules(*em_routing(poses, activations, weight, *betas, **common))


@register_router("vb")
@dataclass(frozen=True, kw_only=True)
class VB(_Mixture):
    """Variational Bayes routing (Ribeiro, Leontidis, Kollias 2020).

    >>> VB().num_iters
    3
    """

    function = staticmethod(vb_routing)

    def __call__(self, layer, poses, activations, weight, **common) -> Capsules:
        betas = (layer.beta_u, layer.beta_a, self.num_iters)
        options = {**common, "compete": self.compete}
        return Capsules(*vb_routing(poses, activations, weight, *betas, **options))


@register_router("self")
@dataclass(frozen=True, kw_only=True)
class SelfRouting(Router):
    """Self-routing (Hahn, Pyeon, Kim 2019): couplings without iteration.

    >>> SelfRouting(route_std=0.01).activations
    True
    """

    function = staticmethod(self_routing)
    activations = True
    coordinates = False  # scores the pose itself
    route_std: float = 0.0
    """Standard deviation of the initial route weights; 0 in the authors' code."""

    def parts(self, sizes: Sizes) -> dict[str, nn.Parameter | nn.Module]:
        route = torch.zeros(sizes.num_transforms, sizes.in_dim, sizes.out_caps)
        if self.route_std:
            nn.init.normal_(route, std=self.route_std)
        bias = torch.zeros(sizes.num_transforms, sizes.out_caps)
        return {"route_weight": nn.Parameter(route), "route_bias": nn.Parameter(bias)}

    def start(self, weight: Tensor, sizes: Sizes) -> None:
        # the authors' Kaiming initialization counts parents and their entries as fan-in
        bound = (6 / weight[0].numel()) ** 0.5
        nn.init.uniform_(weight, -bound, bound)

    def __call__(self, layer, poses, activations, weight, **common) -> Capsules:
        routes = (layer.route_weight, layer.route_bias)
        return Capsules(*self_routing(poses, activations, weight, *routes, **common))
