"""Tables 2, 3, 5 and Figure 7: ablations of the target, the backbone and the decoder.

Each row has its own pretraining; the plain MCAE uses that of Table 1. All have large patches.
"""

from typing import Any

from torchcaps.papers.mcae.setting import PIXELS, SETTINGS, add, finetuning, pretraining, slug
from torchcaps.papers.mcae.table1 import LARGE
from torchcaps.papers.tables import Column, Table, add_table
from torchcaps.training.tasks import Masked

WHOLE = Masked(whole=True)
VIT = {"MNIST": 99.6, "Fashion": 91.1, "smallNORB": 91.4, "CIFAR-10": 90.3, "Imagenette": 68.4,
       "Imagewoof": 55.4}  # fmt: skip
VARIANTS: dict[str, tuple[str, Masked, dict[str, Any]]] = {
    "ViT backbone": ("vit", PIXELS, {"backbone": "vit"}),
    "whole image": ("whole", WHOLE, {}),
    "MLP decoder": ("mlp", PIXELS, {"decoder": "mlp", "decoder_width": 0.125}),
    "convolutional decoder": ("conv", PIXELS, {"decoder": "conv", "decoder_depth": 3}),
}
BARE = "ViT backbone (no pretraining)"
"""Transformers need pretraining, so this pair of rows tests whether ours works."""
add_table(
    Table(
        "mcae",
        "ablations",
        "Ablations of the masked capsule autoencoder",
        {name: Column((s.data,)) for name, s in SETTINGS.items()},
        {row: {} for row in LARGE.values()}
        | {"ViT backbone": VIT, BARE: {}}
        | {row: {} for row in VARIANTS if row != "ViT backbone"},
        sources=("table1",),
    )
)
for row, (short, task, fields) in VARIANTS.items():
    for column in SETTINGS:
        name = f"{short}-{slug(column)}"
        add(
            f"pretrain/{name}",
            f"Pretraining on {column}, {row}.",
            pretraining(column, task, f"pretraining, {row}", **fields),
        )
        recipe = finetuning("ablations", row, column, f"mcae/pretrain/{name}", **fields)
        add(f"ablations/{name}", f"{column}, {row}.", recipe)
for column in SETTINGS:
    recipe = finetuning("ablations", BARE, column, "", **VARIANTS["ViT backbone"][2])
    add(f"ablations/vit-{slug(column)}-scratch", f"{column}, {BARE}.", recipe)
