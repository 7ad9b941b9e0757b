"""GPU kernels. `ops`, `combine` and `place` register them with torch; the others need Triton."""
