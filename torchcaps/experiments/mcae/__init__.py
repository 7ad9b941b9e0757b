"""Masked Capsule Autoencoders (Everett, Zhong, Leontidis 2024)."""

from torchcaps.experiments.mcae import ablations, best, few, pretraining, table1, views

__all__ = ["ablations", "best", "few", "pretraining", "table1", "views"]
