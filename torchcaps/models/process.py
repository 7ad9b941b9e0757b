"""The generative process of capsules, and the evidence bound of latent numbers that are given.

    objects: presence t, pose X ~ Norm(identity, 1)  ->  parts: which object, presence, pose
    -> templates placed by their poses, later ones on top -> image ~ Norm(drawn, sigma)

The selection of an object for each part is summed out (`layers/arrangement.py`). Any number of
layers. With point estimates of poses the bound lacks their entropy, and is none.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.errors import TorchcapsError
from torchcaps.layers.arrangement import Arrangement, OnOff
from torchcaps.layers.templates import Templates, compose
from torchcaps.losses.concrete import concrete_kl, concrete_log_prob, normal_kl, normal_log_prob
from torchcaps.models.base import Bound, ModelConfig


@dataclass(frozen=True)
class GenerativeConfig(ModelConfig):
    family: ClassVar[str] = "generative"
    num_caps: tuple[int, ...] = (16, 16)
    """Capsules of each layer, from the highest objects to the parts."""
    template_size: int = 12
    """Side of a part's template in pixels."""
    objects: Literal["many", "one"] = "many"
    """Whether each object of the highest layer is on or off by itself, or exactly one is on."""
    posterior: Literal["delta", "full"] = "delta"
    """Poses as point estimates, or as Normals."""
    placed: Literal["encoded", "solved"] = "encoded"
    """Whether the encoder says where objects are, or their poses are solved for, given parts."""
    frames: int = 1
    """Angles from which the encoder looks at an image while it learns, of which it keeps the best
    explained: see layers/turns.py."""
    test_frames: int = 0
    """Angles afterwards; 0: as many."""
    on_off: OnOff = "mixture"
    """What a part that is neither on nor off does: see layers/arrangement.py."""
    tau: float = 1.0
    """The temperature of every relaxed presence."""
    sigma: float = 0.2
    """The deviation of a pixel."""
    presence: float = 0.12
    """How often an object is on before anything is learned."""
    learn_presence: bool = True
    """Whether that is learned."""
    pose_std: float = 1.0
    """The deviation of an object's pose from the identity."""
    min_std: float = 0.1
    """The least deviation of a part from where its object wants it."""
    off_std: float = 1.5
    """The deviation of the pose of a part that is off."""
    dummy_std: float = 1.0
    """The deviation of the pose of a part without an object."""
    dummy_share: float = 0.1
    """The weight of having no object, where an object's is at most 1."""
    dummy_presence: float = 0.1
    """How often a part without an object is on."""
    poses: Literal["geometric", "raw"] = "geometric"
    """How the encoder's six numbers make a part's pose."""
    channels: int = 32
    """Channels of the ConvNet."""
    padding: int = 1
    """Rows of zeros around its maps; without any, 28 pixels end as 2x2 positions."""
    width: int = 128
    """Width of the set transformer."""
    heads: int = 4
    """Heads of its attention."""
    depth: int = 4
    """Blocks of the set transformer."""
    inducing: int = 32
    """Learned points through which its members look at each other; 0: directly."""
    state: Literal["each", "shared"] = "each"
    """Whether the set transformer gives every object 32 numbers of its own, or all of them the same
    32; where poses are solved for there is none."""


class Layer(NamedTuple):
    """What the encoder says of the capsules of one layer, and one draw of it."""

    location: Tensor
    """Where the logit of each presence lies [B,J]."""
    mean: Tensor
    """The mean of each pose [B,J,2,3]."""
    std: Tensor | None
    """The deviation of a pose's entries, where the posterior has any."""
    logits: Tensor
    """The logit of each presence, drawn [B,J]."""
    poses: Tensor
    """The poses, drawn [B,J,2,3]."""


@dataclass
class CapsuleBound(Bound):
    layers: list[Layer]
    """The layers from the parts to the highest objects."""
    selections: list[Tensor]
    """The log-joint of each selection, [B,I,J+1] for every layer of objects, from the lowest."""
    joint: Tensor | None
    """The log-joint of each object [B,J], where exactly one is on."""
    turns: Tensor | None
    """From the frame in which parts stand to the image [B,2,3]; None: they are the same."""


class Process(nn.Module):
    """Objects, arrangements and templates: what makes images, without the encoder."""

    def __init__(self, config: GenerativeConfig):
        super().__init__()
        self.options = c = config
        if len(c.num_caps) < 2 or min(c.num_caps) < 1:
            raise TorchcapsError(f"num_caps={c.num_caps}: give objects and parts, as (16, 16).")
        if c.objects == "one" and len(c.num_caps) != 2:
            raise TorchcapsError("objects='one' is made for one layer of objects.")
        if c.placed == "solved" and (c.objects == "many" or c.posterior == "full"):
            raise TorchcapsError("placed='solved' needs objects='one' and posterior='delta'.")
        self.scale = c.template_size / c.image_size
        self.templates = Templates(c.num_caps[-1], c.template_size, c.in_channels, c.image_size)
        self.arrangements = nn.ModuleList(
            Arrangement(
                objects, children, self.scale if n == len(c.num_caps) - 2 else 1.0,
                tau=c.tau, min_std=c.min_std, off_std=c.off_std, dummy_std=c.dummy_std,
                dummy_share=c.dummy_share, dummy_presence=c.dummy_presence, on_off=c.on_off,
            )
            for n, (objects, children) in enumerate(zip(c.num_caps, c.num_caps[1:], strict=False))
        )  # fmt: skip
        first = torch.tensor(c.presence).logit()
        learned = c.learn_presence and c.objects == "many"
        self.presence = nn.Parameter(first, requires_grad=learned)

    def draw(self, parts: Layer, turns: Tensor | None = None) -> Tensor:
        """The image that parts make, where their frame is turned. -> [B,C,H,W]"""
        poses = parts.poses if turns is None else compose(turns[:, None], parts.poses)
        return self.templates(poses, parts.logits.sigmoid())

    @torch.no_grad()
    def settle(self, low: Layer, iterations: int = 3) -> Tensor:
        """Where each object would be if it alone were on: EM, from the identity. -> [B,J,2,3]

        At the best poses the bound has no slope in them, so that no gradient is lost.
        """
        (arrangement,) = self.arrangements
        assert isinstance(arrangement, Arrangement)
        with torch.autocast(low.poses.device.type, enabled=False):
            batch = (low.poses.shape[0], self.options.num_caps[0])
            poses = arrangement.identity.to(low.poses).expand(*batch, 2, 3)
            sure = low.logits.new_zeros(batch)
            for _ in range(iterations):
                said = self._each_alone(arrangement, Layer(sure, poses, None, sure, poses), low)
                on = arrangement.on_shares(poses, low.logits, low.poses)
                shares = said.softmax(-1)[..., 1] * on
                poses = arrangement.best_poses(shares, low.poses, self.options.pose_std)
        return poses

    def explain(
        self, layers: list[Layer], sampled: bool = False
    ) -> tuple[list[Tensor], Tensor | None]:
        """The log-joint of every selection of each layer of objects, and of each object where
        exactly one is on: see `CapsuleBound`.
        """
        if self.options.objects == "many":
            pairs = zip(layers[:-1], layers[1:], reversed(self.arrangements), strict=True)
            return [
                a(high.logits, high.poses, low.logits, low.poses) for low, high, a in pairs
            ], None
        low, high = layers
        with torch.autocast(high.poses.device.type, enabled=False):
            said = self._each_alone(self.arrangements[0], high, low)
            joint = said.logsumexp(-1).sum(1) - self._pose_divergence(high, sampled)
            joint = joint - math.log(joint.shape[1])
            return [self._posterior_of_one(said, joint)], joint

    def bound(
        self,
        images: Tensor,
        layers: list[Layer],
        sampled: bool = False,
        turns: Tensor | None = None,
    ) -> CapsuleBound:
        """The bound at draws that are given, in a frame that is turned by `turns` [B,2,3].

        sampled: divergences of the highest layer by its draws too, not in closed form
        """
        with torch.autocast(images.device.type, enabled=False):
            drawn = self.draw(layers[0], turns)
            pixels = normal_log_prob(images.to(drawn), drawn, self.options.sigma)
            terms = {"image": pixels.flatten(1).sum(1)}
            selections, joint = self.explain(layers, sampled)
            for level, (low, said) in enumerate(zip(layers, selections, strict=False)):
                name = f".{level}" if level else ""
                parts = said.logsumexp(-1).sum(1) if joint is None else joint.logsumexp(1)
                terms[f"parts{name}"] = parts
                terms[f"part_entropy{name}"] = -self._log_posterior(low)
            if joint is None:
                poses = self._pose_divergence(layers[-1], sampled).sum(1)
                terms["objects"] = -self._presence_divergence(layers[-1], sampled) - poses
        return CapsuleBound(terms, drawn, layers, selections, joint, turns)

    def _log_posterior(self, layer: Layer) -> Tensor:
        """log q of a draw; of point estimates, nothing. -> [B]"""
        found = concrete_log_prob(layer.logits, layer.location, self.options.tau).sum(1)
        if layer.std is None:
            return found
        return found + normal_log_prob(layer.poses, layer.mean, layer.std).sum((1, 2, 3))

    def _presence_divergence(self, top: Layer, sampled: bool) -> Tensor:
        if not sampled:
            return concrete_kl(top.location, self.presence).sum(1)
        tau = self.options.tau
        said = concrete_log_prob(top.logits, top.location, tau)
        return (said - concrete_log_prob(top.logits, self.presence, tau)).sum(1)

    def _pose_divergence(self, top: Layer, sampled: bool) -> Tensor:
        """KL(q(A) || Norm(0, pose_std)) of each object; of point estimates -log p. -> [B,J]"""
        still = torch.eye(2, 3, device=top.mean.device, dtype=top.mean.dtype)
        wide = self.options.pose_std
        if top.std is None:
            return -normal_log_prob(top.poses, still, wide).sum((2, 3))
        if sampled:
            said = normal_log_prob(top.poses, top.mean, top.std)
            return (said - normal_log_prob(top.poses, still, wide)).sum((2, 3))
        return normal_kl((top.mean - still) / wide, top.std / wide).sum((2, 3))

    def _each_alone(self, arrangement: Any, high: Layer, low: Layer) -> Tensor:
        """The log-joint of part and selection with object j alone on. -> [B,I,J,2], dummy first"""
        parts = arrangement.log_parts(high.poses, low.logits, low.poses)
        sure = torch.full_like(high.logits, 30.0)
        chosen, parts = (
            torch.stack([t[..., :1].expand_as(t[..., 1:]), t[..., 1:]], -1)
            for t in (arrangement.log_selection(sure), parts)
        )
        return chosen.log_softmax(-1) + parts

    def _posterior_of_one(self, said: Tensor, joint: Tensor) -> Tensor:
        """Selections with the object summed out, as logs of a posterior [B,I,J+1]."""
        each = said.log_softmax(-1) + joint.log_softmax(1)[:, None, :, None]
        return torch.cat([each[..., 0].logsumexp(2, keepdim=True), each[..., 1]], -1)
