"""`generative/best`: digits rotated by up to 180 degrees, where published models fall below a VAE.

Not in the paper: exactly one object is on, summed out, and the encoder uses the frame in which the
image is explained best, out of 8 rotations in training and 16 in evaluation. Objects are
initialized by k-means of the parts, with an annealed bonus for equal use. Baselines: a VAE with the
same frames, and capsules trained on upright digits with 16 frames in evaluation.
"""

from torchcaps.papers.generative.setting import (
    METRIC,
    PLAIN,
    Row,
    probe,
    rotated,
    unsupervised,
)
from torchcaps.papers.tables import Column, Table, add_table
from torchcaps.training.registry import add_recipe
from torchcaps.training.tasks import Elbo

TURNED = rotated(180)
NOTE = "trained and tested on digits rotated by up to 180 degrees, the probe too"
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
"""Row: its setting, training data, further fields of its model."""
add_table(
    Table(
        "generative",
        "best",
        "Rotated digits",
        {
            "t0": Column((TURNED,), METRIC, 1.0, NOTE, fit="train+val", features=("t0", "mu")),
            "t0, A0": Column(
                (TURNED,), METRIC, 1.0, NOTE, fit="train+val", features=("t0+A0", "mu+sigma")
            ),
            "majority": Column(
                (TURNED,), "majority", 1.0, "accuracy of the majority class of each object"
            ),
        },
        {row: {} for row in ROWS},
    )
)
for row, (setting, data, fields) in ROWS.items():
    metrics = tuple(probe(TURNED, features=key) for key in setting.features)
    if setting.model != "vae":
        metrics = (*metrics, f"presences:{TURNED}", f"kmeans:{TURNED},fit=train+val")
    add_recipe(
        f"generative/{setting.name}",
        f"Rotated digits: {row}.",
        unsupervised("best", row, setting, data, metrics, **fields),
    )
