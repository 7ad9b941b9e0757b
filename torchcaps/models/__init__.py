"""Models: images [B,C,H,W] in, an Output with every intermediate by name out."""

from torchcaps.models import capsnet, cnn, convnet, em, inverted, mcae, sr, timm_net, views
from torchcaps.models.base import CapsuleModel, ModelConfig, Output
from torchcaps.models.registry import create_model, from_folder, list_models

__all__ = [
    "CapsuleModel",
    "ModelConfig",
    "Output",
    "capsnet",
    "cnn",
    "convnet",
    "create_model",
    "em",
    "from_folder",
    "inverted",
    "list_models",
    "mcae",
    "sr",
    "timm_net",
    "views",
]
