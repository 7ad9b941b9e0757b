"""Masked Capsule Autoencoders (Everett, Zhong, Leontidis 2024)."""

from torchcaps.experiments.mcae import ablations, table1

__all__ = ["ablations", "table1"]
