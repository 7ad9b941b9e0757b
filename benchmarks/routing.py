"""Fused routing against the references, eager and compiled: forward and backward, one GPU, one run.

    python benchmarks/routing.py [OP …|scaling] [--dtype fp32|tf32|bf16] [--record]
    python benchmarks/routing.py --plot docs/images     draws scaling.png and routing.png

Every row is checked against the float64 reference on a smaller batch first; a row that fails is not
timed. Times are replays of a CUDA graph (no launch gaps, for anyone), or events where the graph
would not fit. Memory is what a plain call allocates at its peak, inputs and gradients included.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from clock import arguments, clear, recorder, timed
from torch import Tensor

from torchcaps.functional import squash
from torchcaps.routing import (
    Window,
    dynamic_routing,
    em_routing,
    inverted_routing,
    self_routing,
    unfold,
)

PEAK = {"fp32": 67e12, "tf32": 495e12, "bf16": 989e12}
"""Operations a second, by the data sheet of an H200; memory 4.8e12 bytes a second."""
BANDWIDTH = 4.8e12
WHOLE = 1 << 60
"""A budget that lets a reference hold all its votes."""


@dataclass
class Op:
    name: str
    detail: str
    route: Callable[..., tuple[Any, ...]]
    """(tensors, impl) -> outputs"""
    shapes: list[tuple[int, ...]]
    """Poses (batch first), transforms, then the rest; a negative first size: in [0,1], batch."""
    passes: int
    """Over the votes, forwards."""
    strongest: Callable[..., tuple[Tensor, ...]] | None = None
    """The best form for torch.compile that we know, where it is not the reference."""
    scale: float = 0.1
    batch: int = 128
    options: dict[str, Any] = field(default_factory=dict)

    def tensors(self, batch: int, dtype: torch.dtype, device: str) -> list[Tensor]:
        g = torch.Generator(device).manual_seed(0)
        made = []
        for n, shape in enumerate(self.shapes):
            if shape[0] < 0:
                made.append(torch.rand(batch, *shape[1:], generator=g, device=device))
            elif n == 0:
                made.append(torch.randn(batch, *shape[1:], generator=g, device=device))
            else:
                made.append(torch.randn(shape, generator=g, device=device) * self.scale)
        made[:2] = [t.to(dtype) for t in made[:2]]
        return [t.requires_grad_() for t in made]

    def __call__(self, tensors: list[Tensor], impl: str) -> tuple[Tensor, ...]:
        found = self.route(
            *tensors, impl=impl, coupling=False, budget=WHOLE, **self.options
        )  # fmt: skip
        return tuple(t for t in found if t is not None)

    def work(self) -> tuple[float, float]:
        """Operations and bytes that no implementation can avoid."""
        poses, weight = self.shapes[0], self.shapes[1]
        rows, children = self.batch, poses[-2]
        if window := self.options.get("window"):
            rows *= window.out(poses[1]) * window.out(poses[2])
            children *= window.kernel**2
        _, out_caps, in_dim, out_dim = weight
        votes = rows * children * out_caps * poses[-1] // in_dim * in_dim * out_dim
        numel = self.batch * torch.Size(poses[1:]).numel() + torch.Size(weight).numel()
        return 3 * 2.0 * votes * self.passes, 2 * 4.0 * numel


def contracted_dynamic(poses: Tensor, weight: Tensor, **options: Any) -> tuple[Tensor, ...]:
    """Three operands at once, so that the compiler need not write votes."""
    if window := options.get("window"):
        poses = unfold(poses, window).flatten(0, 2)
    total = torch.zeros((), device=poses.device)
    coupling = poses.new_full((*poses.shape[:2], weight.shape[1]), 1 / weight.shape[1])
    parents = poses
    for t in range(3):
        if t > 0:
            total = total + parents
            coupling = torch.einsum("bid,ijde,bje->bij", poses, weight, total).softmax(-1)
        parents = squash(torch.einsum("bij,bid,ijde->bje", coupling, poses, weight))
    return (parents,)


def contracted_inverted(poses: Tensor, weight: Tensor, **options: Any) -> tuple[Tensor, ...]:
    x = unfold(poses, options["window"])
    side = weight.shape[-1]
    x = x.unflatten(-1, (side, side))
    parents = torch.einsum("bhwipd,ijde->bhwjpe", x, weight) / weight.shape[1]
    query = parents / side
    coupling = torch.einsum("bhwipd,ijde,bhwjpe->bhwij", x, weight, query).softmax(-1)
    return (torch.einsum("bhwij,bhwipd,ijde->bhwjpe", coupling, x, weight),)


def _em(poses: Tensor, weight: Tensor, active: Tensor, beta_u: Tensor, beta_a: Tensor, **options):
    return em_routing(poses, active, weight, beta_u, beta_a, 3, **options)


def _self(poses: Tensor, weight: Tensor, active: Tensor, wr: Tensor, br: Tensor, **options):
    return self_routing(poses, active, weight, wr, br, **options)


def dynamic(children: int, parents: int) -> Op:
    shapes = [(1, children, 8), (children, parents, 8, 16)]
    name = f"dynamic {children}x8 -> {parents}x16"
    return Op(name, "T=3", dynamic_routing, shapes, 3, contracted_dynamic)


def dynamic_conv(side: int, types: tuple[int, int], out: tuple[int, int], **options: Any) -> Op:
    """Capsules (number of types, entries of a pose) on a grid, windows of 5x5."""
    (in_caps, in_dim), (out_caps, out_dim) = types, out
    shapes = [(1, side, side, in_caps, in_dim), (25 * in_caps, out_caps, in_dim, out_dim)]
    detail = f"{side}x{side} grid, {in_caps}x{in_dim} -> {out_caps}x{out_dim}, T=3"
    return Op(
        detail=detail, route=dynamic_routing, shapes=shapes, passes=3, strongest=contracted_dynamic,
        options={"window": Window(5, 1, 2)}, **options,
    )  # fmt: skip


GRID: dict[str, Any] = {"window": Window(3, 2)}
EM_SIZES = "16x16x32 -> 7x7x32, 4x4 poses, T=3"
EM_SHAPES = [(1, 16, 16, 32, 16), (288, 32, 4, 4), (-1, 16, 16, 32), (32,), (32,)]
OPS = {
    "dynamic": dynamic(1152, 10),
    "dynamic-large": dynamic(4608, 10),
    "dynamic-100": dynamic(2048, 100),
    "dynamic-196": dynamic(3872, 196),
    "dynamic-conv-128": dynamic_conv(
        128, (8, 32), (8, 32), name="dynamic conv 5x5, 128 px", batch=2
    ),
    "dynamic-conv-512": dynamic_conv(
        256, (2, 16), (4, 16), name="dynamic conv 5x5, 512 px", batch=1
    ),
    "inverted": Op(
        "inverted conv 3x3/2",
        "16x16x32 -> 7x7x32, 4x4 poses, T=2",
        inverted_routing,
        [(1, 16, 16, 32, 16), (288, 32, 4, 4)],
        2,
        contracted_inverted,
        options=GRID,
    ),
    "em": Op(
        "EM conv 3x3/2",  # all parents compete for a child, in every window that sees it
        EM_SIZES,
        _em,
        EM_SHAPES,
        3,
        scale=0.3,
        options=GRID,
    ),
    "em-window": Op(
        "EM conv 3x3/2 within windows",
        EM_SIZES,
        _em,
        EM_SHAPES,
        3,
        scale=0.3,
        options={**GRID, "compete": "window"},
    ),
    "self": Op(
        "self-routing conv 3x3/2",
        "16x16x32 -> 7x7x32 of 16",
        _self,
        [(1, 16, 16, 32, 16), (288, 32, 16, 16), (-1, 16, 16, 32), (288, 16, 32), (288, 32)],
        1,
        options=GRID,
    ),
    "self-global": Op(
        "self-routing global",
        "64 positions x 16 -> 64 x 16 of 16",
        _self,
        [(1, 1024, 16), (1024, 64, 16, 16), (-1, 1024), (1024, 16, 64), (1024, 64)],
        1,
    ),
}


def step(function: Callable[..., tuple[Tensor, ...]], tensors: list[Tensor]):
    """Forward and backward with upstream gradients of ones."""
    found = function(tensors)
    return found, torch.autograd.grad([t.sum() for t in found], tensors, allow_unused=True)


def check(op: Op, dtype: str, kind: torch.dtype) -> float:
    """Largest relative error of an output or a gradient, on a batch of 4 and a grid of at most 16,
    because the reference writes votes in float64.
    """
    small = [
        (s[0], *(min(side, 16) for side in s[1:3]), *s[3:]) if n != 1 and len(s) > 3 else s
        for n, s in enumerate(op.shapes)
    ]
    op = replace(op, shapes=small)
    tensors = op.tensors(4, kind, "cuda")
    exact = [t.detach().double().requires_grad_() for t in tensors]
    worst = 0.0
    found = step(lambda t: op(t, "triton"), tensors)
    expected = step(lambda t: op(t, "reference"), exact)
    for a, b in zip([*found[0], *found[1]], [*expected[0], *expected[1]], strict=True):
        worst = max(worst, ((a.double() - b).norm() / b.norm()).item())
    limit = {"fp32": 1e-3, "tf32": 2e-2, "bf16": 5e-2}[dtype]
    if not worst < limit:
        raise SystemExit(f"{op.name}: off by {worst:.1e} from the float64 reference")
    return worst


def compare(op: Op, dtype: str, record: Callable[[dict[str, Any]], None]) -> None:
    kind = torch.bfloat16 if dtype == "bf16" else torch.float32
    worst = check(op, dtype, kind)
    tensors = op.tensors(op.batch, kind, "cuda")
    rows: dict[str, tuple[float, float]] = {}

    def time(impl: str, function: Callable[..., tuple[Tensor, ...]]) -> None:
        torch._dynamo.reset()
        try:
            rows[impl] = timed(lambda: step(function, tensors))
        except torch.OutOfMemoryError:
            print(f"  {impl}: out of memory", flush=True)
        torch.cuda.empty_cache()

    time("fused", lambda t: op(t, "triton"))
    if op.strongest is not None:
        time("fused, compiled", torch.compile(lambda t: op(t, "triton"), fullgraph=True))
    time("eager", lambda t: op(t, "reference"))
    time("compile", torch.compile(lambda t: op(t, "reference"), fullgraph=True))
    if op.strongest is not None:
        form = op.strongest
        time("compile, contracted", torch.compile(lambda t: form(*t, **op.options), fullgraph=True))
    operations, moved = op.work()
    floor = 1e3 * max(operations / PEAK[dtype], moved / BANDWIDTH)
    what = f"{op.name}, {op.detail}, batch {op.batch}, {dtype}"
    print(f"{what}: off by {worst:.0e}; floor {floor:.3f} ms")
    compiled = min((rows[n][0] for n in rows if n.startswith("compile")), default=float("nan"))
    for impl, (ms, peak) in rows.items():
        row = {
            "op": op.name,
            "shape": f"batch {op.batch}, {op.name}, {op.detail}",
            "dtype": dtype,
            "impl": impl,
            "ms": round(ms, 4),
            "peak_mb": round(peak, 1),
            "ratio_compile": round(rows["compile"][0] / ms, 2) if "compile" in rows else None,
            "ratio_strongest": round(compiled / ms, 2),
            "ratio_eager": round(rows["eager"][0] / ms, 2) if "eager" in rows else None,
            "floor_fraction": round(floor / ms, 4),
            "error": worst,
        }
        record(row)


SWEEPS = {
    "children I": [(i, 10, 3) for i in (64, 256, 1024, 4096, 16384, 65536)],
    "parents J": [(1152, j, 3) for j in (4, 16, 64, 256, 1024)],
    "iterations T": [(1152, 10, t) for t in (1, 2, 4, 8, 16, 32)],
}


def scaling(record: Callable[[dict[str, Any]], None]) -> None:
    """Time of dynamic routing against children, parents and iterations, and memory against T."""
    for name, sizes in SWEEPS.items():
        for children, parents, iters in sizes:
            op = dynamic(children, parents)
            op.options = {"num_iters": iters}
            batch = 32 if parents > 64 else 128
            tensors = op.tensors(batch, torch.float32, "cuda")
            ms, peak = timed(
                lambda op=op, t=tensors: step(lambda x: op(x, "triton"), t), seconds=0.05
            )
            shape = f"I={children} J={parents} T={iters} batch {batch}"
            record({"op": f"dynamic, scaling in {name}", "shape": shape, "dtype": "tf32",
                    "impl": "fused", "ms": round(ms, 4), "peak_mb": round(peak, 1)})  # fmt: skip


def draw_scaling(results: Path, to: Path) -> None:
    """The figure of docs/background/kernels.md, from recorded lines: time above, memory below."""
    from torchcaps.analysis.matplotlib_figures import new_figure

    lines = [json.loads(line) for line in results.read_text().splitlines()]
    names = [n for n in SWEEPS if any(r["op"] == f"dynamic, scaling in {n}" for r in lines)]
    figure = new_figure(3 * len(names), 4.6)
    grid = figure.subplots(2, len(names), squeeze=False, sharex="col")
    for column, name in enumerate(names):
        found = [r for r in lines if r["op"] == f"dynamic, scaling in {name}"]
        for row, (key, label) in enumerate((("ms", "milliseconds"), ("peak_mb", "megabytes"))):
            axes = grid[row][column]
            for batch, marker in ((128, "o-"), (32, "s-")):
                rows = [r for r in found if r["shape"].endswith(f"batch {batch}")]
                size = [int(r["shape"].split(f"{name[-1]}=")[1].split()[0]) for r in rows]
                if rows:
                    axes.loglog(size, [r[key] for r in rows], marker, label=f"batch {batch}")
            axes.grid(alpha=0.3)
            axes.set_ylabel(label if not column else "")
        grid[0][column].legend(frameon=False, fontsize=8)
        grid[1][column].set_xlabel(name)
    figure.suptitle("dynamic routing, fused, forward and backward", fontsize=10)
    figure.savefig(to, dpi=130)


IMPLEMENTATIONS = {
    "torchcaps": (("fused", "fused, compiled"), "o", "#0072b2"),
    "torch.compile, best form": (("compile", "compile, contracted"), "s", "#e69f00"),
    "PyTorch, eager": (("eager",), "D", "#999999"),
}
"""Legend: values of `impl`, of which the fastest counts, marker and color."""


def draw_rows(results: Path, to: Path) -> None:
    """The figure of the README: time and memory of each row in tf32, from its newest lines."""
    from torchcaps.analysis.matplotlib_figures import new_figure

    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for line in map(json.loads, results.read_text().splitlines()):
        if line.get("dtype") == "tf32" and "floor_fraction" in line:
            newest[line["op"], line["impl"]] = line
    names = [op.name for op in OPS.values() if (op.name, "eager") in newest]
    figure = new_figure(8, 0.6 + 0.34 * len(names))
    time, memory = figure.subplots(1, 2, sharey=True)
    for label, (impls, marker, color) in IMPLEMENTATIONS.items():
        found = [[newest[n, i] for i in impls if (n, i) in newest] for n in names]
        best = [min(lines, key=lambda line: line["ms"]) for lines in found]
        style: dict[str, Any] = {"marker": marker, "color": color, "ls": "", "label": label}
        time.plot([line["ms"] for line in best], names, **style)
        memory.plot([line["peak_mb"] for line in best], names, **style)
    fused = [newest[n, "fused"] for n in names]
    floor = [line["ms"] * line["floor_fraction"] for line in fused]
    time.plot(floor, names, marker="|", color="black", ls="", ms=10, label="lower bound")
    for axes, label in ((time, "milliseconds"), (memory, "megabytes")):
        axes.set(xscale="log", xlabel=label)
        axes.grid(alpha=0.3)
    time.invert_yaxis()
    handles = time.get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    figure.savefig(to, dpi=130)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("ops", nargs="*", default=list(OPS), help=", ".join([*OPS, "scaling"]))
    parser.add_argument("--dtype", choices=list(PEAK), default="tf32")
    parser.add_argument("--plot", type=Path, help="only draw recorded lines, into this folder")
    options = parser.parse_args()
    if options.plot:
        draw_scaling(options.results, options.plot / "scaling.png")
        return draw_rows(options.results, options.plot / "routing.png")
    if unknown := [n for n in options.ops if n not in (*OPS, "scaling")]:
        raise SystemExit(f"{', '.join(unknown)}: not among {', '.join([*OPS, 'scaling'])}.")
    if not torch.cuda.is_available():
        raise SystemExit("This benchmark needs a GPU.")
    record = recorder(options, "cuda", exact=options.dtype == "fp32")
    for name in options.ops:
        clear()
        if name == "scaling":
            scaling(record)
        else:
            compare(OPS[name], options.dtype, record)


if __name__ == "__main__":
    main()
