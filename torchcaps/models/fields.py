"""Types of configuration fields with their bounds, which `build` checks.

The bounds are far above every useful value. They keep a file of unknown origin from making a
network that takes hours or terabytes.
"""

from typing import Annotated

from torchcaps.typed import Between

Count = Annotated[int, Between(1, 65_536)]
"""Channels, capsules, units."""
CountOrNone = Annotated[int, Between(0, 65_536)]
Side = Annotated[int, Between(1, 4_096)]
"""Pixels."""
SideOrNone = Annotated[int, Between(0, 4_096)]
Kernel = Annotated[int, Between(1, 255)]
Stride = Annotated[int, Between(1, 255)]
Depth = Annotated[int, Between(1, 100)]
"""Layers, blocks, attention heads."""
Iterations = Annotated[int, Between(1, 1000)]
Frames = Annotated[int, Between(1, 360)]
"""Rotations that are tried."""
FramesOrSame = Annotated[int, Between(0, 360)]
Few = Annotated[int, Between(1, 8)]
"""Numbers whose combinations are enumerated."""
Probability = Annotated[float, Between(0, 1)]
Positive = Annotated[float, Between(1e-6, 1e6)]
Weight = Annotated[float, Between(0, 1e6)]
Real = Annotated[float, Between(-1e6, 1e6)]
