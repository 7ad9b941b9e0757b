"""What every capsule layer shares: transforms, a router, and the call of it."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.errors import TorchcapsError
from torchcaps.layers.routers import Capsules, Router, Sizes, make_router
from torchcaps.routing import Impl, Window, add_coordinates


class RoutedCaps(nn.Module):
    """Transforms of the children, and a routing; subclasses decide what the children are.

    sizes.num_transforms: child i takes transform i modulo that number.
    """

    def __init__(
        self,
        sizes: Sizes,
        routing: str | Router,
        *,
        matrix: bool = False,
        coordinates: bool = False,
        impl: Impl = "auto",
    ):
        super().__init__()
        self.router = make_router(routing)
        self.sizes, self.matrix, self.coordinates = sizes, matrix, coordinates
        self.impl: Impl = impl
        if coordinates and not self.router.coordinates:
            raise TorchcapsError(
                f"{self.router.name.capitalize()}-routing scores the pose itself and takes no "
                "coordinates."
            )
        shape = (sizes.columns, sizes.columns) if matrix else (sizes.in_dim, sizes.out_dim)
        self.weight = nn.Parameter(torch.empty(sizes.num_transforms, sizes.out_caps, *shape))
        self.router.start(self.weight, sizes)
        for name, part in self.router.parts(sizes).items():
            setattr(self, name, part)

    def extra_repr(self) -> str:
        s = self.sizes
        said = f"{s.in_caps} of {s.in_dim} -> {s.out_caps} of {s.out_dim}, {self.router}"
        if s.num_transforms != s.in_caps:
            said += f", {s.num_transforms} shared transforms"
        said += ", matrix" if self.matrix else ""
        return said + (", coordinates" if self.coordinates else "")

    def _common(self, window: Window | None, coupling: bool) -> dict[str, Any]:
        return {"window": window, "coupling": coupling, "impl": self.impl}

    def _check(self, poses: Tensor, window: Window | None) -> None:
        if window is None:
            found = poses.shape[1:-1].numel()
        else:
            found = poses.shape[-2] * window.kernel**2
        if found != self.sizes.in_caps:
            raise TorchcapsError(
                f"{type(self).__name__} was made for {self.sizes.in_caps} children of each parent, "
                f"and poses {list(poses.shape)} have {found}."
            )

    def attend(
        self,
        poses: Tensor,
        parents: Tensor | None,
        window: Window | None = None,
        coupling: bool = False,
    ) -> Capsules:
        """One pass of inverted attention from the parents of the pass before; None: the first.

        Shapes as in `route`, parents as it returns them. For layers that iterate together.
        """
        attend = getattr(self.router, "attend", None)
        if attend is None:
            raise TorchcapsError(f"{self.router.name} routing has no passes that layers can share.")
        return attend(self, poses, parents, **self._common(window, coupling))

    def route(
        self,
        poses: Tensor,
        activations: Tensor | None,
        window: Window | None,
        coupling: bool,
        gain: Tensor | None = None,
    ) -> Capsules:
        """poses [B,I,D] or [B,H,W,I,D] with a window, activations [B,I] or [B,H,W,I]

        Coordinates need the grid, so with them a dense layer takes [B,H,W,I,D] too.
        """
        self._check(poses, window)
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
        if self.router.activations and activations is None:
            raise TorchcapsError(f"{self.router.name} routing needs the children's activations.")
        more: dict[str, Any] = {} if gain is None else {"gain": gain}
        common = self._common(window, coupling)
        return self.router(self, poses, activations, weight, **common, **more)


def layer_sizes(
    in_caps: int, in_dim: int, out_caps: int, out_dim: int, num_transforms: int, matrix: bool
) -> Sizes:
    """Sizes of a layer, checked: matrix poses are square and keep their size."""
    side = math.isqrt(in_dim)
    if matrix and (side * side != in_dim or in_dim != out_dim):
        raise TorchcapsError(
            f"Matrix poses are square and keep their size: in_dim={in_dim}, out_dim={out_dim}."
        )
    columns = side if matrix else in_dim
    return Sizes(in_caps, in_dim, out_caps, out_dim, num_transforms, columns)
