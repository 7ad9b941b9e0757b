"""Masked Capsule Autoencoders (Everett, Zhong, Leontidis 2024)."""

from torchcaps.papers.mcae import ablations, best, few, pretraining, table1, viewpoints
