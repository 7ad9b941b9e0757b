"""Which parents compete for a child where windows overlap.

In EM and variational Bayes a child has one unit of assignment. Where several windows see it, the
parents of all of them, J types at n places, share that unit:

    r_wij = exp(logit_wij) / (sum over windows v that see child i, and types k, of exp(logit_vik))
    first:  r_wij = 1 / (J n_i),  n_i the number of windows that see child i

`compete="window"` is the other reading: the types of each window share a unit of their own, so a
child's assignments sum to n_i.
"""

from typing import Literal

import torch
from torch import Tensor

from torchcaps.errors import TorchcapsError
from torchcaps.routing.window import Window, unfold

Compete = Literal["all", "window"]


class Rivals:
    """The windows of a grid, as they compete for its children.

    Rows are windows, all those of an image together and in the order of `unfold`.
    """

    def __init__(self, window: Window, height: int, width: int, types: int, device: torch.device):
        self.window, self.grid = window, (height, width, types)
        self.windows = window.out(height) * window.out(width)
        self.seen = seen_by(window, height, width, device)
        """How many windows see each place. [H,W]"""

    def even(self, dtype: torch.dtype) -> Tensor:
        """What each window has of its children in the beginning, the same in every image.

        -> [H'*W',C]
        """
        count = self.seen[None, :, :, None, None].expand(1, *self.grid, 1)
        count = unfold(count, self.window).flatten(0, 2)[..., 0]  # 0 outside the grid
        return (count > 0) / count.clamp_min(1).to(dtype)

    def assign(self, logits: Tensor) -> Tensor:
        """Assignments that sum to one for each child over all that see it; 0 outside the grid.

        logits [B*H'*W',C,J] -> the same
        """
        height, width, types = self.grid
        slots = height * width * types + 1  # one for each child, after one for what is outside
        places = torch.arange(1, slots, device=logits.device).view(1, *self.grid, 1)
        part = logits.logsumexp(-1).unflatten(0, (-1, self.windows)).flatten(1)
        slot = unfold(places, self.window).flatten().expand(part.shape[0], -1)
        low = part.new_full((1, 1), torch.finfo(part.dtype).min).expand(part.shape[0], slots)
        top = low.scatter_reduce(1, slot, part.detach(), "amax").gather(1, slot)
        none = torch.zeros_like(low)
        total = none.scatter_add(1, slot, (part - top).exp()).gather(1, slot)
        whole = (top + total.log()).masked_fill(slot == 0, torch.inf)
        whole = whole.unflatten(1, (self.windows, -1)).flatten(0, 1)
        return (logits - whole[..., None]).exp()


def seen_by(window: Window, height: int, width: int, device: torch.device) -> Tensor:
    """How many windows see each place of a grid. -> [H,W]"""

    def along(side: int) -> Tensor:
        place = torch.arange(side, device=device) + window.padding
        corner = torch.arange(window.out(side), device=device) * window.stride
        inside = place[:, None] - corner
        return ((inside >= 0) & (inside < window.kernel)).sum(1)

    return along(height)[:, None] * along(width)


def find_rivals(compete: Compete, poses: Tensor, window: Window | None) -> Rivals | None:
    """The windows that share children; None where each normalises by itself."""
    if compete not in ("all", "window"):
        raise TorchcapsError(f"compete={compete!r}: it is all or window.")
    if compete == "window" or window is None or window.kernel <= window.stride:
        return None
    _, height, width, types, _ = poses.shape
    if window.out(height) == window.out(width) == 1:
        return None
    return Rivals(window, height, width, types, poses.device)
