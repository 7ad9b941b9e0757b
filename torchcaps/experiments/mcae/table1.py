"""Table 1: six data sets, with and without pretraining, and what they are compared with.

`mcae/pretrain` and `mcae/finetune` are CIFAR-10's, for one's own data too:
`torchcaps train mcae/pretrain --data folder:photos,size=32`, then `mcae/finetune --from RUN`.
The table of the paper is lost from its text here; the values of its best row are in the rest of it.
"""

from dataclasses import replace
from typing import Any

from torchcaps.experiments.mcae.setting import ADAMW, SETTINGS, add, finetuning, pretraining, slug
from torchcaps.experiments.tables import Column, Table, add_table

PAPER = {
    "MNIST": 99.6, "Fashion": 95.0, "smallNORB": 95.0, "CIFAR-10": 92.8, "Imagenette": 82.1,
    "Imagewoof": 61.8,
}  # fmt: skip
COLUMNS = {name: Column((s.data,)) for name, s in SETTINGS.items()}
OTHERS = {
    "SR-CapsNet": "sr-capsnet",
    "ResNet-18": "resnet18",
    "MobileNetV3": "mobilenetv3",
    "ViT-S": "vit-small",
}
add_table(
    Table(
        "mcae",
        "table1",
        "With and without pretraining",
        COLUMNS,
        {"MCAE": PAPER, "MCAE (no pretraining)": {}, **{r: {} for r in OTHERS}},
    )
)
for column, printed in PAPER.items():
    name = slug(column)
    add(f"pretrain/{name}", f"Pretraining on {column}.", pretraining(column), as_printed=True)
    add(
        f"table1/{name}",
        f"{column} after pretraining, which is done first: {printed} % in the paper.",
        finetuning("table1", "MCAE", column, f"mcae/pretrain/{name}"),
        as_printed=True,
    )
    add(
        f"table1/{name}-scratch",
        f"{column} without pretraining.",
        finetuning("table1", "MCAE (no pretraining)", column, ""),
        as_printed=True,
    )
    for row, model in OTHERS.items():
        fields: dict[str, Any] = {}
        if model == "vit-small":
            fields = {"patch_size": SETTINGS[column].patch_size}
        made = finetuning("table1", row, column, "", model=model, **fields)
        if model == "vit-small":  # SGD at 0.1 hardly teaches it
            made = replace(made, optimiser=ADAMW)
        elif model == "sr-capsnet":  # its authors' batch; it needs many steps
            made = replace(made, batch_size=64)
        add(f"table1/{name}-{model}", f"{column}, {row} beside it.", made)

own = replace(pretraining("CIFAR-10"), paper="", table="", row="")
add("pretrain", "Pretraining on CIFAR-10, or on your images: --data.", own)
add(
    "finetune",
    "Finetuning on CIFAR-10 or your images, from a pretrained run: --from RUN.",
    replace(finetuning("", "", "CIFAR-10", "mcae/pretrain"), paper=""),
)
