"""The generative process of capsules, and the evidence bound at given latent variables.

    objects: presence t, pose X ~ Norm(identity, 1)  ->  parts: object, presence, pose
    -> templates placed by their poses, later ones on top -> image ~ Norm(rendered, sigma)

The selection of an object for each part is summed out (`models/generative/arrangement.py`). Any
number of layers. With point estimates of poses the bound lacks their entropy and is not a lower
bound of the likelihood.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.errors import TorchcapsError
from torchcaps.layers.templates import Templates, compose
from torchcaps.models.base import Bound, ModelConfig
from torchcaps.models.fields import (
    Count,
    CountOrNone,
    Depth,
    Frames,
    FramesOrSame,
    Positive,
    Probability,
    Side,
    SideOrNone,
)
from torchcaps.models.generative.arrangement import Arrangement, OnOff
from torchcaps.models.generative.concrete import (
    concrete_kl,
    concrete_log_prob,
    normal_kl,
    normal_log_prob,
)

ON_LOGIT = 30.0
"""Logit of the presence of an object that is certainly on."""


@dataclass(frozen=True, kw_only=True)
class GenerativeConfig(ModelConfig):
    family: ClassVar[str] = "generative"
    num_caps: tuple[Count, ...] = (16, 16)
    """Number of capsules in each layer, from the highest objects to the parts."""
    template_size: Side = 12
    """Side of a part's template in pixels."""
    objects: Literal["many", "one"] = "many"
    """Prior of the highest layer: each object on or off independently, or exactly one on."""
    posterior: Literal["delta", "full"] = "delta"
    """Poses as point estimates (delta) or as Normals (full)."""
    placed: Literal["encoded", "solved"] = "encoded"
    """Source of object poses: the encoder, or a closed-form solution given the parts."""
    frames: Frames = 1
    """Number of rotations tried for each image in training; the best explained one is kept. See
    layers/rotations.py."""
    test_frames: FramesOrSame = 0
    """Number of rotations in evaluation; 0: as in training."""
    on_off: OnOff = "mixture"
    """Density of a part with a presence between 0 and 1: see models/generative/arrangement.py."""
    tau: Positive = 1.0
    """Temperature of the relaxed presences."""
    sigma: Positive = 0.2
    """Standard deviation of the pixel noise."""
    presence: Probability = 0.12
    """Initial prior probability that an object is on."""
    learn_presence: bool = True
    """Learn that probability."""
    pose_std: Positive = 1.0
    """Standard deviation of an object's pose around the identity."""
    min_std: Positive = 0.1
    """Minimum standard deviation of a part's pose around its object's vote."""
    off_std: Positive = 1.5
    """Standard deviation of the pose of a part that is off."""
    dummy_std: Positive = 1.0
    """Standard deviation of the pose of a part without an object."""
    dummy_share: Probability = 0.1
    """Weight of having no object; the weight of an object is at most 1."""
    dummy_presence: Probability = 0.1
    """Probability that a part without an object is on."""
    poses: Literal["geometric", "raw"] = "geometric"
    """Mapping from the encoder's six numbers to a part's pose."""
    channels: Count = 32
    """Channels of the ConvNet."""
    padding: SideOrNone = 1
    """Zero padding of its convolutions; without padding, 28 pixels end as 2x2 positions."""
    width: Count = 128
    """Width of the set transformer."""
    heads: Depth = 4
    """Attention heads of the set transformer."""
    depth: Depth = 4
    """Blocks of the set transformer."""
    inducing: CountOrNone = 32
    """Number of inducing points in its attention; 0: full attention."""
    state: Literal["each", "shared"] = "each"
    """Output of the set transformer: 32 numbers for each object, or 32 numbers shared by all.
    Unused with placed=solved."""


class Layer(NamedTuple):
    """Posterior over the capsules of one layer, and one sample of it."""

    location: Tensor
    """Location of the logit of each presence [B,J]."""
    mean: Tensor
    """Mean of each pose [B,J,2,3]."""
    std: Tensor | None
    """Standard deviation of the entries of each pose; None: poses are point estimates."""
    logits: Tensor
    """Sampled logit of each presence [B,J]."""
    poses: Tensor
    """Sampled poses [B,J,2,3]."""


@dataclass
class CapsuleBound(Bound):
    layers: list[Layer]
    """Layers from the parts to the highest objects."""
    selections: list[Tensor]
    """Log-joint of each selection, [B,I,J+1] for every layer of objects, from the lowest."""
    joint: Tensor | None
    """Log-joint of each object [B,J], if exactly one is on."""
    turns: Tensor | None
    """Rotation from the frame of the parts to the image [B,2,3]; None: no rotation."""


def rotated(poses: Tensor, turns: Tensor | None) -> Tensor:
    """Poses in the frame of the image; turns [B,2,3], None: no rotation. [B,I,2,3] -> [B,I,2,3]"""
    return poses if turns is None else compose(turns[:, None], poses)


class Process(nn.Module):
    """Objects, arrangements and templates: the model that generates images, without the encoder."""

    def __init__(self, config: GenerativeConfig):
        super().__init__()
        self.options = c = config
        if len(c.num_caps) < 2 or min(c.num_caps) < 1:
            raise TorchcapsError(f"num_caps={c.num_caps}: give objects and parts, as (16, 16).")
        if c.objects == "one" and len(c.num_caps) != 2:
            raise TorchcapsError(
                f"objects='one' needs one layer of objects; num_caps={c.num_caps} has "
                f"{len(c.num_caps) - 1}."
            )
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

    def decode(self, parts: Layer, turns: Tensor | None = None) -> Tensor:
        """Render the image of parts; `turns` rotates their frame. -> [B,C,H,W]"""
        return self.templates(rotated(parts.poses, turns), parts.logits.sigmoid())

    @torch.no_grad()
    def solve_objects(self, low: Layer, iterations: int = 3) -> Tensor:
        """Pose of each object if it alone were on: EM, from the identity. -> [B,J,2,3]

        At the best poses the gradient of the bound with respect to them is zero, so no gradient is
        lost.
        """
        (arrangement,) = self.arrangements
        assert isinstance(arrangement, Arrangement)
        with torch.autocast(low.poses.device.type, enabled=False):
            shape = (low.poses.shape[0], self.options.num_caps[0])
            poses = arrangement.identity.to(low.poses).expand(*shape, 2, 3)
            zeros = low.logits.new_zeros(shape)
            for _ in range(iterations):
                high = Layer(zeros, poses, None, zeros, poses)
                selections = self._log_single(arrangement, high, low).softmax(-1)[..., 1]
                poses = arrangement.em_step(
                    selections, poses, low.logits, low.poses, self.options.pose_std
                )
        return poses

    def explain(
        self, layers: list[Layer], sampled: bool = False
    ) -> tuple[list[Tensor], Tensor | None]:
        """Log-joint of every selection of each layer of objects, and of each object if exactly one
        is on: see `CapsuleBound`.
        """
        if self.options.objects == "many":
            pairs = zip(layers[:-1], layers[1:], reversed(self.arrangements), strict=True)
            return [
                a(high.logits, high.poses, low.logits, low.poses) for low, high, a in pairs
            ], None
        low, high = layers
        with torch.autocast(high.poses.device.type, enabled=False):
            selections = self._log_single(self.arrangements[0], high, low)
            joint = selections.logsumexp(-1).sum(1) - self._pose_divergence(high, sampled)
            joint = joint - math.log(joint.shape[1])
            return [self._log_posterior_selections(selections, joint)], joint

    def bound(
        self,
        images: Tensor,
        layers: list[Layer],
        sampled: bool = False,
        turns: Tensor | None = None,
    ) -> CapsuleBound:
        """The bound at these latent samples, in a frame rotated by `turns` [B,2,3].

        sampled: estimate the divergences of the highest layer from its samples too, instead of in
        closed form
        """
        with torch.autocast(images.device.type, enabled=False):
            rendered = self.decode(layers[0], turns)
            pixels = normal_log_prob(images.to(rendered), rendered, self.options.sigma)
            terms = {"image": pixels.flatten(1).sum(1)}
            selections, joint = self.explain(layers, sampled)
            for level, (low, selection) in enumerate(zip(layers, selections, strict=False)):
                name = f".{level}" if level else ""
                parts = selection.logsumexp(-1).sum(1) if joint is None else joint.logsumexp(1)
                terms[f"parts{name}"] = parts
                terms[f"part_entropy{name}"] = -self._log_posterior(low)
            if joint is None:
                poses = self._pose_divergence(layers[-1], sampled).sum(1)
                terms["objects"] = -self._presence_divergence(layers[-1], sampled) - poses
        return CapsuleBound(terms, rendered, layers, selections, joint, turns)

    def _log_posterior(self, layer: Layer) -> Tensor:
        """log q of a sample; point estimates of poses contribute nothing. -> [B]"""
        presences = concrete_log_prob(layer.logits, layer.location, self.options.tau).sum(1)
        if layer.std is None:
            return presences
        return presences + normal_log_prob(layer.poses, layer.mean, layer.std).sum((1, 2, 3))

    def _presence_divergence(self, top: Layer, sampled: bool) -> Tensor:
        if not sampled:
            return concrete_kl(top.location, self.presence).sum(1)
        tau = self.options.tau
        log_posterior = concrete_log_prob(top.logits, top.location, tau)
        return (log_posterior - concrete_log_prob(top.logits, self.presence, tau)).sum(1)

    def _pose_divergence(self, top: Layer, sampled: bool) -> Tensor:
        """KL(q(A) || Norm(0, pose_std)) of each object; -log p for point estimates. -> [B,J]"""
        identity = torch.eye(2, 3, device=top.mean.device, dtype=top.mean.dtype)
        std = self.options.pose_std
        if top.std is None:
            return -normal_log_prob(top.poses, identity, std).sum((2, 3))
        if sampled:
            log_posterior = normal_log_prob(top.poses, top.mean, top.std)
            return (log_posterior - normal_log_prob(top.poses, identity, std)).sum((2, 3))
        return normal_kl((top.mean - identity) / std, top.std / std).sum((2, 3))

    def _log_single(self, arrangement: Any, high: Layer, low: Layer) -> Tensor:
        """Log-joint of part and selection with object j alone on. -> [B,I,J,2], dummy first"""
        parts = arrangement.log_parts(high.poses, low.logits, low.poses)
        on = torch.full_like(high.logits, ON_LOGIT)
        selection, parts = (
            torch.stack([t[..., :1].expand_as(t[..., 1:]), t[..., 1:]], -1)
            for t in (arrangement.log_selection(on), parts)
        )
        return selection.log_softmax(-1) + parts

    def _log_posterior_selections(self, selections: Tensor, joint: Tensor) -> Tensor:
        """Log-posterior of the selections with the object summed out [B,I,J+1]."""
        each = selections.log_softmax(-1) + joint.log_softmax(1)[:, None, :, None]
        return torch.cat([each[..., 0].logsumexp(2, keepdim=True), each[..., 1]], -1)
