"""GPU kernels. `ops` registers them with torch; `step` holds the Triton code and needs Triton."""
