"""Models: images [B,C,H,W] in, an Output with every intermediate by name out."""

from torchcaps.models import (
    autoencoder,
    capsnet,
    cnn,
    constellation,
    convnet,
    em,
    generative,
    inverted,
    mcae,
    point_covers,
    point_scae,
    scae,
    sparse,
    sr,
    timm_net,
    vae,
    views,
)
from torchcaps.models.base import CapsuleModel, ModelConfig, Output
from torchcaps.models.registry import create_model, from_folder, list_models

__all__ = [
    "CapsuleModel",
    "ModelConfig",
    "Output",
    "autoencoder",
    "capsnet",
    "cnn",
    "constellation",
    "convnet",
    "create_model",
    "em",
    "from_folder",
    "generative",
    "inverted",
    "list_models",
    "mcae",
    "point_covers",
    "point_scae",
    "scae",
    "sparse",
    "sr",
    "timm_net",
    "vae",
    "views",
]
