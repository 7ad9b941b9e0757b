"""Models: images [B,C,H,W] in, an Output with every intermediate by name out."""

from torchcaps.models import baselines, capsnet, em, generative, group_equivariant, inverted
from torchcaps.models import mcae, multi_view, photos, scae, sparse, sr, vae
from torchcaps.models.base import Model, ModelConfig, Output
from torchcaps.models.registry import create_model, from_folder, list_models

__all__ = ["Model", "ModelConfig", "Output", "create_model", "from_folder", "list_models"]
