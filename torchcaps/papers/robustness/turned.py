"""Generalization from upright to rotated digits: capsules against global max pooling.

Trained on MNIST shifted by up to 2 px, tested on digits rotated by up to 45, 90 or 180 degrees.
Test-time rotations: of 16 rotations of an image, `surest` uses the prediction with the highest
probability, `logit` that with the highest logit, and `drawn` lowers the score of a prediction by
its reconstruction error (`metrics/angles.py`). The baseline has the same convolutions with max
pooling over positions instead of capsules, also with a loss that, like the margin loss, treats
classes separately. Not in the paper.
"""

from dataclasses import replace

from torchcaps.papers.robustness.setting import SIGMOID, SOFTMAX, TODAY, add, on_plain, slug
from torchcaps.papers.tables import Column, Table, add_table
from torchcaps.training.tasks import Classify

ANGLES = (45, 90, 180)
DRAWN = Classify(loss="margin", reconstruction=0.01)
ROWS = {
    "capsules": ("capsnet-modern", DRAWN),
    "maximum in place of capsules": ("convnet-modern", SOFTMAX),
    "maximum, binary cross entropy": ("convnet-modern", SIGMOID),
    "groups of units that draw": ("convnet-cr", replace(DRAWN, loss="cross_entropy")),
    "CapsNet": ("capsnet", DRAWN),
}


def at(angle: int) -> str:
    return f"rotated:mnist,degrees={angle}"


HOW = {
    "": "accuracy",
    ", surest of 16": "angles_confidence",
    ", logit of 16": "angles_logit",
    ", drawn of 16": "angles_drawing",
}
add_table(
    Table(
        "robustness",
        "turned",
        "Trained on upright digits, tested on rotated digits",
        {
            "0": Column(("mnist",)),
            **{f"{a}{end}": Column((at(a),), m) for a in ANGLES for end, m in HOW.items()},
        },
        {row: {} for row in ROWS},
    )
)
for row, (model, task) in ROWS.items():
    recipe = on_plain("turned", row, "mnist", model, task)
    metrics = tuple(f"{kind}:{at(a)}" for a in ANGLES for kind in ("accuracy", "angles"))
    recipe = replace(
        recipe,
        data=replace(recipe.data, augment=("translate:2",)),
        optimizer=TODAY,
        metrics=metrics,
    )
    add(f"turned/{slug(row)}", f"Trained on upright, tested on rotated digits: {row}.", recipe)
