"""Figure 4: accuracy by routing iterations on the simple backbone, with ablations.

A: without LayerNorm. B: one layer after the other. C: with activations. The schedule is shortened
from 350 to 20 epochs, so the paper's curves, whose values are not printed, are not comparable. Time
and memory by iterations: benchmarks/inverted.py.
"""

from dataclasses import replace
from typing import Any

from torchcaps.papers.inverted.setting import (
    ADAM,
    AUGMENT,
    FAST_ADAM,
    MARGIN,
    SPREAD,
    add,
    on_cifar,
)
from torchcaps.papers.tables import Column, Table, add_table

SHORT: dict[str, Any] = {"epochs": 20, "augment": AUGMENT}
VARIANTS: dict[str, tuple[str, str, tuple[int, ...], dict[str, Any]]] = {
    "inverted": ("inverted", "inverted-simple", (1, 2, 3, 4, 5), {}),
    "A, no LayerNorm": ("a", "inverted-simple", (1, 2, 3, 5), {"norm": False}),
    "B, sequential": ("b", "inverted-simple", (1, 2, 3, 5), {"concurrent": False}),
    "C, activations": ("c", "inverted-simple", (1, 2, 3, 5), {"activations": True}),
    "dynamic": ("dynamic", "capsnet", (1, 2, 3, 5), {
        "task": MARGIN, "optimizer": ADAM, "reconstruction": "none",
    }),
    "EM": ("em", "em-simple", (1, 2, 3, 5), {"task": SPREAD, "optimizer": FAST_ADAM}),
}  # fmt: skip

add_table(
    Table(
        "inverted",
        "figure4",
        "CIFAR-10, simple backbone, by routing iterations",
        {"CIFAR-10": Column(("cifar10",))},
        {f"{row}, {n}": {} for row, (_, _, counts, _) in VARIANTS.items() for n in counts}
        | {"inverted, converged": {}},
    )
)
for row, (short, model, counts, options) in VARIANTS.items():
    for n in counts:
        recipe = on_cifar("figure4", f"{row}, {n}", model, num_iters=n, **SHORT, **options)
        add(f"figure4/{short}-{n}", f"{row}: {n} iterations, shortened schedule.", recipe)
recipe = on_cifar(
    "figure4", "inverted, converged", "inverted-simple", num_iters="converged", **SHORT
)
add(
    "figure4/inverted-converged",
    "Inverted attention to a fixed point with implicit gradients, the paper's future work.",
    replace(recipe, hardware=replace(recipe.hardware, compile="none")),  # data-dependent iterations
)
