"""Photographs: pretrained backbones, and heads on their maps with and without capsules."""

from torchcaps.models.photos.backbone import register_backbone
from torchcaps.models.photos.base import PhotoConfig, PhotoModel
from torchcaps.models.photos.capsule_head import CapsuleHead, CapsuleHeadConfig
from torchcaps.models.photos.plain_head import PlainHead, PlainHeadConfig

__all__ = [
    "CapsuleHead",
    "CapsuleHeadConfig",
    "PhotoConfig",
    "PhotoModel",
    "PlainHead",
    "PlainHeadConfig",
    "register_backbone",
]
