"""`generative/best`: digits turned by up to 180 degrees, where published models fall below a VAE.

Ours, not the paper's: exactly one object is on, summed out, and the encoder looks from the frame in
which the image is explained best: 8 angles in training, 16 afterwards. Objects are seeded from a
clustering of parts, and held to be used alike at first. A VAE with the same frames says what they
are worth without capsules; capsules that were trained on upright digits and look from 16 angles
afterwards, what training on turned ones costs.
"""

from torchcaps.experiments.generative.setting import (
    METRIC,
    PLAIN,
    Row,
    probe,
    turned,
    unsupervised,
)
from torchcaps.experiments.tables import Column, Table, add_table
from torchcaps.train.registry import add_recipe
from torchcaps.train.tasks import Elbo

TURNED = turned(180)
NOTE = "trained and tested on digits turned by up to 180 degrees, the probe too"
HELPED = Elbo(usage=10.0, usage_steps=10_500, soft=8.0, soft_steps=7_500, seed_at=1_000)
BEST = Row("best", "generative-framed", ("t0", "t0+A0", "parts"), steps=15_000, task=HELPED)
VAE = Row("best/vae", "vae", ("mu", "mu+sigma"), PLAIN, fields={"hidden": (400,), "units": 16})
ROWS = {
    "best": (BEST, TURNED, {}),
    "VAE": (VAE, TURNED, {}),
    "VAE with frames": (
        VAE._replace(name="best/vae-framed", steps=15_000), TURNED, {"frames": 8, "test_frames": 16}
    ),
    "trained upright": (BEST._replace(name="best/upright"), "mnist", {"frames": 1}),
}  # fmt: skip
"""Row: what fills it, what it is trained on, fields of its model."""
add_table(
    Table(
        "generative",
        "best",
        "Turned digits",
        {
            "t0": Column((TURNED,), METRIC, 1.0, NOTE, fit="train+val", features=("t0", "mu")),
            "t0, A0": Column(
                (TURNED,), METRIC, 1.0, NOTE, fit="train+val", features=("t0+A0", "mu+sigma")
            ),
            "majority": Column(
                (TURNED,), "majority", 1.0, "digits whose class is the commonest of their object"
            ),
        },
        {row: {} for row in ROWS},
    )
)
for row, (made, data, fields) in ROWS.items():
    measures = tuple(probe(TURNED, features=key) for key in made.reads)
    if made.model != "vae":
        measures = (*measures, f"presences:{TURNED}", f"kmeans:{TURNED},fit=train+val")
    add_recipe(
        f"generative/{made.name}",
        f"Turned digits: {row}.",
        unsupervised("best", row, made, data, measures, **fields),
    )
