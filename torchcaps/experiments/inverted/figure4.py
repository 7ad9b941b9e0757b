"""Figure 4: accuracy against routing iterations on the simple backbone, and what the parts are for.

A: without LayerNorm. B: one layer after the other. C: with activations. A shortened schedule: 20
epochs where the paper has 350, so its curves, which the text does not print, are not beside ours.
Time and memory against iterations: benchmarks/inverted.py.
"""

from dataclasses import replace
from typing import Any

from torchcaps.experiments.inverted.setting import (
    ADAM,
    AUGMENT,
    FAST_ADAM,
    MARGIN,
    SPREAD,
    add,
    on_cifar,
)
from torchcaps.experiments.tables import Column, Table, add_table

SHORT: dict[str, Any] = {"epochs": 20, "augment": AUGMENT}
VARIANTS: dict[str, tuple[str, str, tuple[int, ...], dict[str, Any]]] = {
    "inverted": ("inverted", "inverted-simple", (1, 2, 3, 4, 5), {}),
    "A, no LayerNorm": ("a", "inverted-simple", (1, 2, 3, 5), {"norm": False}),
    "B, sequential": ("b", "inverted-simple", (1, 2, 3, 5), {"concurrent": False}),
    "C, activations": ("c", "inverted-simple", (1, 2, 3, 5), {"activations": True}),
    "dynamic": ("dynamic", "capsnet", (1, 2, 3, 5), {
        "task": MARGIN, "optimiser": ADAM, "reconstruction": "none",
    }),
    "EM": ("em", "em-simple", (1, 2, 3, 5), {"task": SPREAD, "optimiser": FAST_ADAM}),
}  # fmt: skip

add_table(
    Table(
        "inverted",
        "figure4",
        "CIFAR-10, simple backbone, against iterations",
        {"CIFAR-10": Column(("cifar10",))},
        {f"{row}, {n}": {} for row, (_, _, counts, _) in VARIANTS.items() for n in counts}
        | {"inverted, converged": {}},
    )
)
for row, (short, model, counts, options) in VARIANTS.items():
    for n in counts:
        made = on_cifar("figure4", f"{row}, {n}", model, num_iters=n, **SHORT, **options)
        add(f"figure4/{short}-{n}", f"{row}: {n} iterations, a shortened schedule.", made)
made = on_cifar("figure4", "inverted, converged", "inverted-simple", num_iters="converged", **SHORT)
add(
    "figure4/inverted-converged",
    "Inverted attention to a fixed point, with implicit gradients: the paper's future work.",
    replace(made, hardware=replace(made.hardware, compile="none")),  # how long depends on the data
)
