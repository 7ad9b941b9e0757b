"""Capsules with Inverted Dot-Product Attention Routing (Tsai and others, 2020)."""

from torchcaps.papers.inverted import fair, figure4, figure5, table1
