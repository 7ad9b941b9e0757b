"""Few labels: pretrained on all images, finetuned on 10 or 100 of each class. Not in the paper.

Pretraining is that of `best` with AdamW and stronger crops, which gives better ridge probes.
Finetuning takes about a thousand steps with 10 labels per class and two thousand with 100, and the
last weights are used: a validation set would need more labels than training. Each seed samples its
own labels.
"""

from dataclasses import replace

from torchcaps.papers.mcae.best import CROPS, best_pretraining, hardened
from torchcaps.papers.mcae.setting import ADAMW, SETTINGS, add, finetuning, slug
from torchcaps.papers.mcae.table1 import COLUMNS
from torchcaps.papers.tables import Table, add_table

EPOCHS = {"CIFAR-10": 100, "Imagenette": 300}
"""Epochs of pretraining."""
LABELS = {10: (50, 500), 100: (100, 200)}
"""Labels per class -> batch size and epochs of finetuning."""

add_table(
    Table(
        "mcae",
        "few-labels",
        "Pretrained on all images, finetuned on few labels",
        {name: COLUMNS[name] for name in EPOCHS},
        {f"{row}{n} labels a class": {} for n in LABELS for row in ("", "no pretraining, ")},
    )
)
for column, pretrained in EPOCHS.items():
    short = slug(column)
    fine = SETTINGS[column].small
    first = best_pretraining(column, "pretraining, few labels", decoder_shared=True, **fine)
    data = replace(first.data, augment=CROPS[column])
    first = replace(first, epochs=pretrained, optimizer=ADAMW, data=data)
    add(f"few-labels/pretrain-{short}", f"Pretraining on {column} with AdamW.", first)
    for count, (batch, epochs) in LABELS.items():
        for row, end in (("", ""), ("no pretraining, ", "-scratch")):
            before = "" if row else f"mcae/few-labels/pretrain-{short}"
            row = f"{row}{count} labels a class"
            recipe = finetuning("few-labels", row, column, before, **fine)
            recipe = hardened(recipe, column, "erase", cutmix=0.0)
            recipe = replace(
                recipe,
                epochs=epochs,
                batch_size=batch,
                choose="last",
                data=replace(recipe.data, per_class=count),
                optimizer=replace(recipe.optimizer, lr=0.04),
            )
            add(f"few-labels/{short}-{count}{end}", f"{column}, {recipe.row}.", recipe)
