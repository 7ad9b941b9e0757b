"""Capsule Network is Not More Robust than Convolutional Network (Gu, Tresp, Hu 2021)."""

from torchcaps.papers.robustness import best, groups, table1, table2, table3, table4, table5, turned
