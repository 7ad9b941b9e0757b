"""`mcae/best`: the same network and the same inference, trained better. Ours, not the paper's.

Pretraining is four times as long, on pixels normalised within their patch; finetuning crops harder,
pastes rectangles of other images, decays more and averages weights. Rows between it and Table 1's
say which of the two it is.
"""

from dataclasses import replace

from torchcaps.experiments.mcae.setting import JITTER, LIGHT, add, finetuning, pretraining, slug
from torchcaps.experiments.mcae.table1 import COLUMNS
from torchcaps.experiments.tables import Table, add_table
from torchcaps.train.recipe import LossSpec, OptimiserSpec, Recipe

CROPS = {
    "smallNORB": ("flip", LIGHT),
    "CIFAR-10": ("crop:4", "flip"),
    "Imagenette": ("resized-crop:min_area=0.35", "flip", JITTER),
}
ROWS = {
    "best": "mcae/best/pretrain-{}",
    "best, plain pretraining": "mcae/pretrain/{}",
    "best, no pretraining": "",
}
add_table(
    Table(
        "mcae",
        "best",
        "The plain network, trained better",
        {name: COLUMNS[name] for name in CROPS},
        {row: {} for row in (*ROWS, "MCAE", "MCAE (no pretraining)")},
        sources=("table1",),
    )
)


def longer(column: str) -> Recipe:
    first = pretraining(column, LossSpec("cross_entropy", target="normalised"))
    return replace(first, epochs=4 * first.epochs)


def hardened(recipe: Recipe, column: str, *more: str, cutmix: float = 0.5) -> Recipe:
    """more: augmentations after the column's own"""
    return replace(
        recipe,
        data=replace(recipe.data, augment=(*CROPS[column], *more), cutmix=cutmix),
        loss=LossSpec("cross_entropy", smoothing=0.1),
        optimiser=OptimiserSpec("sgd", 0.1, 5e-4, decay_all=False, nesterov=True, ema=0.999),
    )


for column in CROPS:
    short = slug(column)
    add(f"best/pretrain-{short}", f"Longer pretraining on {column}.", longer(column))
    for row, before in ROWS.items():
        plain = finetuning("best", row, column, before.format(short))
        variant = row.removeprefix("best").removeprefix(", ").replace(" ", "-")
        name = "-".join(filter(None, (f"best/{short}", variant)))
        name = "best" if name == "best/imagenette" else name
        add(name, f"{column}, {row}.", hardened(plain, column))
