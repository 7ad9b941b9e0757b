"""Set transformer (Lee et al. 2019): attention between the members of a set, and pooling.

Attention scores are scaled by 1/sqrt(width) instead of the head's width, as in the authors' code.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Attend(nn.Module):
    """Attention block: queries attend to a set, then a feed-forward layer.

    queries [B,M,Q], members [B,N,K] -> [B,M,width]
    """

    letters = "[B,N,D] -> [B,N,E]"

    def __init__(self, query_dim: int, member_dim: int, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(query_dim, width)
        self.key, self.value = nn.Linear(member_dim, width), nn.Linear(member_dim, width)
        self.norm, self.last_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.out = nn.Linear(width, width)

    def forward(self, queries: Tensor, members: Tensor) -> Tensor:
        queries = self.query(queries)
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for t in (queries, self.key(members), self.value(members))
        )
        heads = F.scaled_dot_product_attention(q, k, v, scale=queries.shape[-1] ** -0.5)
        hidden = self.norm(queries + heads.transpose(1, 2).flatten(-2))
        return self.last_norm(hidden + F.relu(self.out(hidden)))


class Among(nn.Module):
    """Self-attention in a set, through `inducing` learned points if that is not 0."""

    letters = "[B,N,D] -> [B,N,E]"

    def __init__(self, dim: int, width: int, heads: int, inducing: int = 0):
        super().__init__()
        self.points = None
        if inducing:
            self.points = nn.Parameter(nn.init.xavier_uniform_(torch.empty(1, inducing, width)))
            self.gather = Attend(width, dim, width, heads)
        self.attend = Attend(dim, width if inducing else dim, width, heads)

    def forward(self, members: Tensor) -> Tensor:
        if self.points is None:
            return self.attend(members, members)
        points = self.points.expand(members.shape[0], -1, -1)
        return self.attend(members, self.gather(points, members))


class SetTransformer(nn.Module):
    """Encode a set to a fixed number of vectors, one per learned seed. [B,N,D] -> [B,seeds,out]"""

    letters = "[B,N,D] -> [B,J,E]"

    def __init__(
        self, dim: int, seeds: int, out: int, *, width: int = 128, heads: int = 4, depth: int = 4,
        inducing: int = 0,
    ):  # fmt: skip
        super().__init__()
        dims = [dim, *[width] * depth]
        self.blocks = nn.Sequential(*(Among(d, width, heads, inducing) for d in dims[:-1]))
        self.seeds = nn.Parameter(nn.init.xavier_uniform_(torch.empty(1, seeds, width)))
        self.pool = Attend(width, dims[-1], width, heads)
        self.narrow = nn.Linear(width, out)

    def forward(self, members: Tensor) -> Tensor:
        members = self.blocks(members)
        return self.narrow(self.pool(self.seeds.expand(members.shape[0], -1, -1), members))


def one_head(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Attention with one head. [B,M,E], [B,N,E], [B,N,E], additive mask [B,N] -> [B,M,E]"""
    q, k, v = (t[:, None] for t in (queries, keys, values))
    return F.scaled_dot_product_attention(q, k, v, mask[:, None, None].to(q.dtype))[:, 0]


class PresentBlock(nn.Module):
    """Self-attention with one head, weighted by the presence of each member."""

    letters = "[B,N,D] -> [B,N,D]"

    def __init__(self, width: int):
        super().__init__()
        self.look = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.norm, self.last_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.hidden = nn.Sequential(
            nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )

    def forward(self, members: Tensor, presence: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.look(members).chunk(3, -1)
        update = self.mix(one_head(q, k, v, mask))
        members = self.norm((members + update) * presence[..., None])
        return self.last_norm(members + self.hidden(members))


class PresentSet(nn.Module):
    """Set encoder of the stacked capsule autoencoder: weighted members to one vector per seed.

    [B,N,D], [B,N] -> [B,seeds,out]
    """

    letters = "[B,N,D] -> [B,J,E]"

    def __init__(self, dim: int, seeds: int, out: int, width: int = 16, depth: int = 3):
        super().__init__()
        self.narrow, self.widen = nn.Linear(dim, width), nn.Linear(width, out)
        self.blocks = nn.ModuleList(PresentBlock(width) for _ in range(depth))
        self.seeds = nn.Parameter(nn.init.xavier_uniform_(torch.empty(1, seeds, out)))
        self.query, self.mix = nn.Linear(out, out), nn.Linear(out, out)
        self.look = nn.Linear(out, 2 * out)

    def forward(self, members: Tensor, presence: Tensor, hard: bool = False) -> Tensor:
        """hard: attend only to the members with the largest presence"""
        mask = (presence - 1) * 1e32 if hard else presence.clamp(min=1e-16).log()
        if hard:  # the limit of a softmax of values this large
            mask = torch.where(mask == mask.amax(-1, keepdim=True), 0.0, -torch.inf)
        members = self.narrow(members)
        for block in self.blocks:
            members = block(members, presence, mask)
        k, v = self.look(self.widen(members)).chunk(2, -1)
        queries = self.query(self.seeds).expand(members.shape[0], -1, -1)
        return self.mix(one_head(queries, k, v, mask))
