"""Gu, Tresp, Hu: Capsule Network is Not More Robust than Convolutional Network (CVPR 2021)."""

from torchcaps.experiments.robustness import table1

__all__ = ["table1"]
