"""Masked Capsule Autoencoders (Everett, Zhong, Leontidis 2024)."""

from torchcaps.experiments.mcae import ablations, best, few, table1, views

__all__ = ["ablations", "best", "few", "table1", "views"]
