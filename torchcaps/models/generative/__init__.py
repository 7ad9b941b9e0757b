"""Generative capsules with variational inference."""

from torchcaps.models.generative import model
