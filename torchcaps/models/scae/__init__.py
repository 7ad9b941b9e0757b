"""The stacked capsule autoencoder."""

from torchcaps.models.scae import model
