"""Every kernel compiles for sm_90 without a GPU, and for sm_80 with TORCHCAPS_ATTACK."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from torchcaps.kernels import attention, shares, smo, templates, votes  # noqa: E402
from torchcaps.kernels.common import Shape  # noqa: E402

DENSE = Shape(128, 1, 1, 1152, 1, 1, 0, 1, 8, 10, 16, 1152)
CONV = Shape(128, 16, 16, 32, 3, 2, 1, 4, 4, 32, 4, 288)
WIDE = [
    Shape(16, 1, 1, 64, 1, 1, 0, 1, *size, 64)
    for size in ((32, 10, 32), (64, 40, 64), (128, 10, 32))
]
POINTWISE = Shape(16, 8, 8, 16, 1, 1, 0, 1, 16, 16, 16, 16)
GLOBAL = Shape(16, 1, 1, 1024, 1, 1, 0, 1, 16, 64, 32, 1024)
ROWS = Shape(16, 8, 8, 4, 3, 1, 0, 8, 8, 40, 16, 36)
JOBS = [
    ("stats", "dot", DENSE),
    ("gather", "dot", DENSE),
    ("gather", "uniform", DENSE),
    ("gather", "known", DENSE),
    ("to_children", "dot", DENSE),
    ("to_children", "uniform", DENSE),
    ("to_transforms", "dot", DENSE),
    ("to_transforms", "uniform", DENSE),
    ("stats", "linear", CONV),
    ("gather", "linear", CONV),
    ("to_children", "linear", CONV),
    ("to_transforms", "linear", CONV),
    ("votes-forward", "dot", CONV),
    ("votes-backward", "dot", CONV),
    ("votes-forward", "gauss", CONV),
    ("votes-backward", "gauss", CONV),
    ("votes-backward", "gauss", ROWS),
    (
        "votes-stats-forward",
        "gauss",
        CONV,
    ),  # competing windows: denominators and gradients
    ("votes-stats-backward", "gauss", CONV),
    ("votes-known-forward", "gauss", CONV),
    *(
        (part, "shares", shape)
        for part in ("gather", "to_children", "to_transforms")
        for shape in (POINTWISE, GLOBAL, WIDE[1])
    ),
    *((part, "dot", wide) for part in ("gather", "to_children", "to_transforms") for wide in WIDE),
    ("place", "templates", {"BP": 256}),
    ("place_backward", "templates", {"BP": 128, "BS": 16, "BLOCKS": 13}),
    ("smo", "pairs", {"CHUNKS": 4, "BLOCK": 4096, "num_warps": 16, "num_stages": 1}),
]


OTHERS = {
    "ranges": "*i32", "steps": "*i32", "alpha": "*fp64", "slope": "*fp64", "c": "fp32",
    "tolerance": "fp32",
}  # fmt: skip
HALF = ("poses", "weight", "shares", "d_logits", "d_poses", "d_shares", "grad")


def _options(part, score, shape, half):
    poses = torch.empty(1)
    weighted = score in ("linear", "gauss")
    if score == "pairs":
        return smo.smo, dict(shape)
    if score == "templates":
        sizes = {"I": 16, "C": 2, "S": 12, "SIDE": 40, "num_warps": 4, "num_stages": 3}
        return getattr(templates, part), {**sizes, **shape}
    if score == "shares":
        weight = torch.empty(shape.transforms, shape.parents, shape.in_dim, shape.out_dim)
        options = shares.options(part, torch.empty(1, shape.children, shape.in_dim), weight)
        if part != "to_children":
            options["CHUNK"] = 4
        return getattr(shares, part), options
    if part.startswith("votes"):
        back = part.endswith("backward")
        plan = votes.plan(shape, score, back, 132)
        options = votes.options(shape, plan, score, weighted, poses)
        if back:
            return votes.backward_kernel, {
                **options,
                "G": 4,
                "RP": shape.pose_rows,
                "WHOLE": False,
                "STATS": "stats" in part,
                "TO_POSES": True,
                "TO_WEIGHT": True,
            }
        stats, known = "stats" in part, "known" in part
        more = {"WITH_LSE": known, "STATS": stats, "WITH_COUPLING": not stats}
        return votes.forward_kernel, {**options, **more}
    poses = poses.to(torch.bfloat16 if half else torch.float32)
    options = attention.options(shape, attention.tile(shape, score, part), score, part, poses)
    if part == "gather":
        options |= {"CHUNK": 4, "WEIGHTED": weighted, "WITH_COUPLING": score != "known"}
    elif part == "to_children":
        tables = score != "uniform"
        options |= {"WEIGHTED": weighted, "TO_POSES": True, "TO_SHARES": tables}
        options["TO_LOGITS"] = score == "dot"
    elif part == "to_transforms":
        options |= {"CHUNK": 4, "WEIGHTED": weighted}
    return getattr(attention, part), options


def _absent(name, score):
    """Arguments that this score passes as None."""
    return (
        (name == "activations" and score not in ("linear", "gauss"))
        or (name == "query" and score in ("uniform", "linear", "known"))
        or (name in ("precision", "bias") and score != "gauss")
        or (name.startswith("route_") and score != "linear")
    )


def _compile(part, score, shape, capability, half):
    kernel, options = _options(part, score, shape, half)
    warps, stages = options.pop("num_warps"), options.pop("num_stages")
    if "P" in kernel.arg_names:
        options["P"] = "tf32"
    if half and "CAST" in kernel.arg_names:
        options["CAST"] = triton.language.bfloat16
    signature, constants = {}, dict(options)
    for name in kernel.arg_names:
        if name in options:
            signature[name] = "constexpr"
        elif _absent(name, score):
            signature[name], constants[name] = "constexpr", None
        elif name.endswith("_stride"):
            signature[name] = "i64"
        elif name in ("rows", "points", "max_steps") or name.endswith("_slots"):
            signature[name] = "i32"
        elif name in OTHERS:
            signature[name] = OTHERS[name]
        else:
            halved = half and name in HALF and isinstance(shape, Shape)
            signature[name] = "*bf16" if halved else "*fp32"
    # as the launcher finds them: it knows of every tensor that it starts at a multiple of 16 bytes
    aligned = {
        (n,): [["tt.divisibility", 16]]
        for n, kind in enumerate(signature.values())
        if kind.startswith("*")
    }
    return triton.compile(
        ASTSource(kernel, signature, constants, aligned),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": warps, "num_stages": stages},
    )


def compile_all(capability):
    both = "TORCHCAPS_ATTACK" in os.environ  # else each in one precision, by turns
    jobs = [
        (*job, capability, half)
        for n, job in enumerate(JOBS)
        for half in (False, True)
        if both or half == bool(n % 2)
    ]
    limit = 232_448 if capability == 90 else 166_912
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        for job, built in zip(jobs, pool.map(lambda j: _compile(*j), jobs), strict=True):
            assert len(built.asm["cubin"]) > 1000, job
            assert built.metadata.shared <= limit, job


@pytest.mark.skipif(torch.cuda.is_available(), reason="the other tests compile for this GPU")
@pytest.mark.parametrize("capability", [80, 90] if "TORCHCAPS_ATTACK" in os.environ else [90])
def test_every_kernel_compiles(capability, tmp_path):
    """Runs in a subprocess, because this process interprets the kernels."""
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.kernels.test_cross_compile", str(capability)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    compile_all(int(sys.argv[1]))
