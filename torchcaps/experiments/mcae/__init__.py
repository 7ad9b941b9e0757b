"""Masked Capsule Autoencoders (Everett, Zhong, Leontidis 2024)."""

from torchcaps.experiments.mcae import ablations, best, table1

__all__ = ["ablations", "best", "table1"]
