"""Plans of the fused steps: how large a tile a program owns, by the sizes and the GPU's memory."""

from dataclasses import dataclass

from torchcaps.kernels.common import Shape, Tile, cdiv, pow2, shared_memory


def tile(shape: Shape, score: str, kernel: str) -> Tile:
    """Tile of a kernel of `attention`, measured on an H200: many parents pay for wider tiles."""
    many = shape.parents > 32
    if kernel == "stats":
        return Tile(64, 128 if many or score == "linear" else 64, 4, 3)
    if kernel == "gather":
        if score == "linear":
            return Tile(32, 64, 2, 3, 4)
        if many and shape.rows >= 128 and pow2(shape.out_dim) <= 16:
            return Tile(128, 64, 8, 3, 4)
        return Tile(64, 64, 4, 3, 2)
    if score == "linear":
        # wider without windows: matrix poses, and sizes too large for the kernels in `shares`
        return Tile(32, 64 if shape.covers else 32, 2, 3)
    return Tile(64, 64 if many or score == "uniform" else 32, 4, 3)


def sizes(shape: Shape, t: Tile, size: int) -> tuple[int, int, int]:
    """Children of a block, and bytes of a pipeline stage and of a product, for entries of `size`
    bytes.
    """
    wide, out = pow2(shape.in_dim), max(16, pow2(shape.out_dim))
    block = max(1, 16 // wide, min(pow2(shape.children), t.columns // wide))
    columns = block * wide
    product = 4 * t.rows * columns
    transforms = 2 * max(size, 4) * columns * out * t.parents  # in two orders
    return block, transforms + 8 * t.rows * out + product, product


@dataclass(frozen=True)
class Plan:
    """Tile of a program of `votes` and number of ranges of children."""

    rows: int
    parents: int
    """Parents per program; fewer than all need a first run for the denominators."""
    warps: int
    stages: int
    splits: int
    """Ranges of children that run in parallel, each with its own sums."""


def shared_bytes(rows: int, in_dim: int, columns: int, backward: bool) -> int:
    """Shared memory of a program of `votes` without a pipeline, in float32.

    rows of a pose; columns: parents x pose entries of a program
    """
    lines, deep = 16 * pow2(rows), max(16, pow2(in_dim))
    if backward:  # transforms and poses in two orders, and the votes' gradients
        return 4 * (2 * deep * columns + 2 * lines * deep + 2 * lines * columns)
    return 4 * (deep * columns + lines * deep)


def why_not(rows: int, in_dim: int, out_dim: int) -> str:
    """Reason why a program of `votes` does not fit into this GPU's shared memory, or ""."""
    needed = shared_bytes(rows, in_dim, max(16, pow2(out_dim)), True)
    if needed <= shared_memory():
        return ""
    return (
        f"poses of {rows} rows with transforms of {in_dim}x{out_dim} need {needed >> 10} KB of "
        f"shared memory, and this GPU has {shared_memory() >> 10}"
    )


def plan(shape: Shape, score: str, backward: bool, sms: int) -> Plan:
    """Measured on an H200 at 16x16x32 -> 7x7x32 of 4x4 poses; see docs/background/kernels.md."""
    wide = pow2(shape.out_dim)
    # entries of parent poses that a program holds for each of its 16 rows
    entries = 256 if backward else 512
    limit = max(1, entries // (shape.pose_rows * wide))
    least = max(16 // wide, 1)
    parents = max(least, min(pow2(shape.parents), 1 << (limit.bit_length() - 1)))
    sizes = shape.pose_rows, shape.in_dim
    while parents > least and shared_bytes(*sizes, parents * wide, backward) > shared_memory():
        parents //= 2
    warps = 8 if score == "gauss" else 4
    deep = 3 if backward or score == "gauss" else 2
    grid = cdiv(shape.rows, 16) * cdiv(shape.parents, parents)
    per_sm = 4 if backward or score == "gauss" else 8
    splits = max(1, min(64, shape.children, per_sm * sms // grid))
    return Plan(16, parents, warps, deep, splits)
