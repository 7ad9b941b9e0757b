"""The masked capsule autoencoder: pretraining by reconstructing hidden patches."""

from torchcaps.models.mcae import model
