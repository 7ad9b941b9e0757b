"""Novel viewpoints of photographed objects: capsule heads beside heads without capsules."""

from torchcaps.papers.viewpoints import fruits, ideas, others
