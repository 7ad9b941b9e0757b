"""Novel viewpoints of photographed objects: capsule heads and the same features without capsules."""

from torchcaps.papers.viewpoints import fruits
