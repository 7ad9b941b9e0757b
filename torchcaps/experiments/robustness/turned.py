"""Turned digits after upright ones: do capsules earn it where a maximum does not?

Trained on MNIST as it is, shifted by up to 2 px; tested on digits turned by up to so many degrees.
`surest`: seen from 16 angles, of which the surest answer is believed, by its probability; `logit`:
by its logit alone. `drawn`: an answer counts less, the worse the class capsule's drawing fits what
was seen (`analysis/angles.py`). The control has the same convolutions and a maximum over positions
in place of capsules; once more with a loss that, like the margin loss, asks of every class by
itself. Ours, not the paper's.
"""

from dataclasses import replace

from torchcaps.experiments.robustness.setting import SIGMOID, SOFTMAX, TODAY, add, on_plain, slug
from torchcaps.experiments.tables import Column, Table, add_table
from torchcaps.train.tasks import Classify

ANGLES = (45, 90, 180)
DRAWN = Classify("margin", reconstruction=0.01)
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
        "Digits turned by up to so many degrees, after upright ones",
        {
            "0": Column(("mnist",)),
            **{f"{a}{end}": Column((at(a),), m) for a in ANGLES for end, m in HOW.items()},
        },
        {row: {} for row in ROWS},
    )
)
for row, (model, task) in ROWS.items():
    made = on_plain("turned", row, "mnist", model, task)
    asked = tuple(f"{kind}:{at(a)}" for a in ANGLES for kind in ("accuracy", "angles"))
    made = replace(
        made, data=replace(made.data, augment=("translate:2",)), optimiser=TODAY, measures=asked
    )
    add(f"turned/{slug(row)}", f"Turned digits after upright ones: {row}.", made)
