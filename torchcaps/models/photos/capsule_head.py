"""Capsules on the feature maps of a pretrained network, for photographs of any size.

feature maps, averaged to a grid -> primary capsules by a 1x1 convolution -> class capsules; child
types share their transforms over positions, so no weight depends on the image's size

Class scores are the logits of the routing times a learned factor: log shares of the children's
activation (self), log-odds of lengths (uniform, dynamic), log-odds of activations (em, vb), a
linear read-out (inverted). As in SR-CapsNet, the class capsules of self-routing have no poses. With
over 200 classes, routings other than uniform and self route to the parents that are longest after a
uniform pass. With reconstruction=features the pose of the true class, all others masked as in
CapsNet, is decoded to the feature maps; `feature_errors` are the squared errors.
"""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.errors import UsageError
from torchcaps.functional import exact, log_odds, safe_norm, squash
from torchcaps.layers import Capsules, DenseCaps, router_with
from torchcaps.layers.capsules import ClassCaps
from torchcaps.models.base import Output, mask_capsules
from torchcaps.models.fields import Count, CountOrNone, Iterations
from torchcaps.models.photos.base import PhotoConfig, PhotoModel
from torchcaps.models.photos.feature_decoder import FeatureDecoder
from torchcaps.models.registry import register
from torchcaps.routing import uniform_routing
from torchcaps.typed import Between

no_poses: Any = None
MANY = 200
"""Classes up to which every routing sees all parents."""


@dataclass(frozen=True, kw_only=True)
class CapsuleHeadConfig(PhotoConfig):
    family: ClassVar[str] = "capsule-head"
    routing: str = "self"
    """Routing of the class capsules: self, uniform, dynamic, inverted, em, vb."""
    num_iters: Iterations = 3
    """Iterations of routings that iterate."""
    num_types: Count = 16
    """Types of primary capsules."""
    pose_dim: Annotated[int, Between(1, 64)] = 16
    """Entries of a primary pose."""
    class_pose_dim: Annotated[int, Between(1, 64)] = 16
    """Entries of a class pose."""
    parents: CountOrNone = 32
    """Parents of an image in iterative routings with over 200 classes; 0: all."""
    reconstruction: Literal["none", "features"] = "none"
    """Decode the pose of the labeled class to the feature maps, or no decoder."""


class HeadCaps(DenseCaps):
    """Dense capsules whose transforms are shared over the positions of any grid."""

    def _check(self, poses: Tensor, window: Any) -> None:
        """Any number of positions fits; the routing checks the types."""


class CapsuleHead(PhotoModel):
    def __init__(self, config: CapsuleHeadConfig):
        super().__init__(config)
        c = config
        router = router_with(c.routing, num_iters=c.num_iters)
        self.types = c.num_types
        self.width = c.num_types * c.pose_dim
        activations = c.num_types if router.activations else 0
        self.primary = nn.Conv2d(self.channels, self.width + activations, 1)
        self.feature_decoder: FeatureDecoder | None = None
        if c.reconstruction == "features":
            if router.name == "self":
                raise UsageError(
                    "reconstruction=features decodes poses, and the class capsules of routing=self "
                    "have none: take routing=uniform, dynamic, inverted, em or vb."
                )
            units = c.num_classes * c.class_pose_dim
            self.feature_decoder = FeatureDecoder(in_units=units, channels=self.channels)
        if router.name == "self":
            self.classes: Any = ClassCaps(
                in_caps=c.num_types, in_dim=c.pose_dim, num_classes=c.num_classes
            )
            self.log_scale = nn.Parameter(torch.zeros(()))
            return
        side = c.grid or 7
        self.classes = HeadCaps(
            in_caps=side * side * c.num_types, in_dim=c.pose_dim, out_caps=c.num_classes,
            out_dim=c.class_pose_dim, routing=router, shared=c.num_types,
        )  # fmt: skip
        self.read = nn.Linear(c.class_pose_dim, 1) if router.name == "inverted" else None
        self.log_scale = nn.Parameter(torch.zeros(()))

    @property
    def best(self) -> int:
        """How many parents an image is routed to; 0: all."""
        c = self.config
        few = c.num_classes <= max(MANY, c.parents) or c.routing in ("uniform", "self")
        return 0 if few else c.parents

    def forward_capsules(self, features: Tensor, coupling: bool = False) -> Output:
        maps = self.primary(self.seen(features)).permute(0, 2, 3, 1)
        poses = maps[..., : self.width].unflatten(3, (self.types, -1))
        active = maps[..., self.width :].sigmoid() if maps.shape[3] > self.width else None
        primary = Capsules(poses, active)
        if self.config.routing == "self":
            assert active is not None
            votes, coupled = self._self_routed(poses, active, coupling)
            shares = votes.sum((2, 3))
            classes = Capsules(no_poses, shares, coupled)
            # above zero: more than an equal share, which is what a class of several needs
            logits = self.log_scale.exp() * (shares * shares.shape[1]).clamp(min=1e-6).log()
            return Output(logits, None, features, (primary, classes))
        children = poses.flatten(1, 3), None if active is None else active.flatten(1)
        if self.best:
            classes, logits = self._best_parents(*children, coupling)
        else:
            classes = self.classes(*children, coupling=coupling)
            logits = self._logits(classes)
        logits = self.log_scale.exp() * logits
        return Output(logits, None, features, (primary, classes))

    def _self_routed(
        self, poses: Tensor, active: Tensor, coupling: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Share of the whole activation that each position gives to each class, and the coupling.

        poses [B,H,W,T,D], active [B,H,W,T] -> [B,Y,H,W] with the sum one, [B,HWT,Y]
        """
        grid = poses.shape[1:3]
        poses, active = poses.flatten(1, 2), active.flatten(1, 2)
        routed: Capsules = self.classes(poses, active, coupling=coupling)
        assert routed.activations is not None
        mass = exact(active).sum(2)
        votes = routed.activations * (mass / mass.sum(1, keepdim=True))[..., None]  # [B,L,Y]
        shares = None if routed.coupling is None else routed.coupling.flatten(1, 2)
        return votes.mT.unflatten(2, grid), shares

    def _logits(self, classes: Capsules) -> Tensor:
        """Class scores of routed capsules. -> [B,J]"""
        poses, active = exact(classes.poses), classes.activations
        if self.read is not None:
            return self.read(poses)[..., 0]
        return log_odds(safe_norm(poses) if active is None else active)

    def _best_parents(
        self, poses: Tensor, active: Tensor | None, coupling: bool
    ) -> tuple[Capsules, Tensor]:
        """Route to the longest parents of a uniform pass; logits of the others stay below theirs.

        poses [B,I,D], active [B,I]
        """
        layer, count = self.classes, self.config.num_classes
        sums, _ = uniform_routing(poses, layer.weight, 1, False, coupling=False)
        parents = squash(sums * (count / self.best))  # a share for each parent that is routed to
        logits = log_odds(safe_norm(parents))
        index = logits.topk(self.best, -1).indices
        weight = layer.weight  # [T,J,D,E] -> [B,T,K,D,E]
        table = weight.transpose(0, 1).flatten(1)
        chosen = F.embedding(index, table).unflatten(2, (weight.shape[0], *weight.shape[2:]))
        own = {name: getattr(layer, name) for name in layer.router.parts(layer.sizes)}
        by_parent = {n: p for n, p in own.items() if isinstance(p, Tensor) and len(p) == count}
        others = {n: p for n, p in own.items() if n not in by_parent}

        def one(poses: Tensor, active: Tensor | None, weight: Tensor, named: dict) -> tuple:
            rows = None if active is None else active[None]
            routed = layer.router(
                SimpleNamespace(**named, **others), poses[None], rows, weight,
                window=None, coupling=coupling, impl="reference",
            )  # fmt: skip
            return tuple(t[0] for t in routed if t is not None)

        named = {n: F.embedding(index, p.reshape(count, -1)).unflatten(2, p.shape[1:] or (1,))
                 for n, p in by_parent.items()}  # fmt: skip
        named = {n: t if by_parent[n].dim() > 1 else t[..., 0] for n, t in named.items()}
        dims = (0, None if active is None else 0, 0, 0)
        parts = list(torch.vmap(one, dims)(poses, active, chosen.transpose(1, 2), named))
        routed = Capsules(
            parts.pop(0), parts.pop(0) if active is not None else None,
            parts.pop(0) if coupling else None,
        )  # fmt: skip
        better = self._logits(routed)
        better = better - better.amin(1, keepdim=True).detach()
        logits = logits.scatter_add(1, index, better.to(logits.dtype))
        rows = index[..., None].expand(-1, -1, parents.shape[2])
        parents = parents.scatter(1, rows, routed.poses.to(parents.dtype))
        shares = None
        if routed.coupling is not None:
            shares = routed.coupling.new_zeros(*routed.coupling.shape[:2], count)
            shares = shares.scatter(2, index[:, None].expand_as(routed.coupling), routed.coupling)
        return Capsules(parents, None, shares), logits

    @property
    def provides(self) -> frozenset[str]:
        if not self.config.num_classes:
            return frozenset()
        decoder = {"feature-decoder"} if self.feature_decoder is not None else set()
        return frozenset({"logits"} | decoder)

    def feature_errors(self, output: Output, labels: Tensor | None = None) -> Tensor:
        if self.feature_decoder is None:
            return super().feature_errors(output, labels)
        assert output.logits is not None and output.features is not None
        assert output.capsules is not None
        labels = output.logits.argmax(1) if labels is None else labels
        units = mask_capsules(output.capsules, labels)
        units = units.sum(1) if units.ndim == 3 else units  # several labels
        return self.feature_decoder.errors(units, self.seen(output.features))

    def class_vectors(self, images: Tensor, labels: Tensor) -> Tensor:
        """With self-routing for each type the sum of the poses that a class receives: poses times
        activation times coupling.
        """
        if self.config.routing != "self":
            return super().class_vectors(images, labels)
        output = self.encode(images, coupling=True)
        children = output.layers[0]
        assert output.coupling is not None and children.activations is not None
        sent = output.coupling[..., labels] * children.activations.flatten(1)[..., None]
        by_type = sent.unflatten(1, (-1, self.types))  # [B,L,T,K]
        return torch.einsum("bltk,bltd->bktd", by_type, children.poses.flatten(1, 2)).flatten(2)

    @torch.no_grad()
    def position_votes(self, images: Tensor, labels: Tensor) -> Tensor:
        """Share of the activation that a position gives to a class (self); of capsules with poses
        coupling times the vote along the class pose. Summed over types.
        """
        output = self.encode(images, coupling=True)
        children, classes = output.layers[0].poses, output.layers[1]
        rows = torch.arange(len(labels), device=labels.device)[:, None]
        if self.config.routing == "self":
            active = output.layers[0].activations
            assert active is not None
            return self._self_routed(children, active, False)[0][rows, labels]
        assert classes.coupling is not None
        shares = classes.coupling.expand(len(labels), -1, -1).mT[rows, labels]  # [B,K,I]
        weight = self.classes.weight.transpose(0, 1)[labels]  # [B,K,T,D,E]
        along = F.normalize(classes.poses[rows, labels], dim=-1)
        votes = torch.einsum("bhwtd,bktde,bke->bkhwt", children, weight, along)
        return (votes * shares.unflatten(2, children.shape[1:4])).sum(4)


for routing, summary in (
    ("self", "capsules on pretrained features, for photographs"),
    ("uniform", "capsules without routing on pretrained features"),
):
    register(
        "capsule-head" if routing == "self" else f"capsule-head-{routing}",
        CapsuleHead,
        CapsuleHeadConfig(routing=routing),
        summary,
        listed=routing == "self",
    )
