"""Heads without capsules on the same feature maps: the baselines of capsule heads."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from torchcaps.errors import TorchcapsError
from torchcaps.models.base import Output
from torchcaps.models.fields import Count
from torchcaps.models.photos.base import PhotoConfig, PhotoModel
from torchcaps.models.registry import register


@dataclass(frozen=True, kw_only=True)
class PlainHeadConfig(PhotoConfig):
    family: ClassVar[str] = "plain-head"
    kind: Literal["linear", "mlp", "vote"] = "vote"
    """linear: of mean features; mlp: one hidden layer on them; vote: the mlp at each position, and
    the mean of its class probabilities."""
    hidden: Count = 256
    """Units of the hidden layer."""


class PlainHead(PhotoModel):
    def __init__(self, config: PlainHeadConfig):
        super().__init__(config)
        channels, hidden, classes = self.channels, config.hidden, config.num_classes
        layers: list[nn.Module] = [nn.Linear(channels, classes)]
        if config.kind != "linear":
            layers = [nn.Linear(channels, hidden), nn.ReLU(), nn.Linear(hidden, classes)]
        self.head = nn.Sequential(*layers)

    def forward_capsules(self, features: Tensor, coupling: bool = False) -> Output:
        maps = self.seen(features).permute(0, 2, 3, 1)
        if self.config.kind != "vote":
            return Output(self.head(maps.mean((1, 2))), features=features)
        by_position = self.head(maps).float().log_softmax(-1).flatten(1, 2)
        # above zero: more than an equal share, which is what a class of several needs
        shift = math.log(by_position.shape[2] / by_position.shape[1])
        return Output(by_position.logsumexp(1) + shift, features=features)

    def hidden(self, output: Output) -> Tensor:
        """The hidden layer before its ReLU, averaged over positions. -> [B,N]"""
        if self.config.kind == "linear":
            raise TorchcapsError("A linear head has no hidden layer: take vote-head or mlp-head.")
        assert output.features is not None
        return self.head[0](self.seen(output.features).mean((2, 3)))

    @torch.no_grad()
    def position_votes(self, images: Tensor, labels: Tensor) -> Tensor:
        """The probability of the class at each position, or of linear heads its logit there."""
        maps = self.seen(self.forward_features(images)).permute(0, 2, 3, 1)
        scores = self.head(maps)
        scores = scores.softmax(-1) if self.config.kind == "vote" else scores
        rows = torch.arange(len(labels), device=labels.device)[:, None]
        return scores.permute(0, 3, 1, 2)[rows, labels]


for config, summary in (
    (PlainHeadConfig(kind="linear"), "linear layer on pretrained features, a baseline"),
    (PlainHeadConfig(kind="mlp"), "MLP on pretrained features, a baseline"),
    (PlainHeadConfig(kind="vote"), "MLP at each position of pretrained features, a baseline"),
):
    register(f"{config.kind}-head", PlainHead, config, summary)
