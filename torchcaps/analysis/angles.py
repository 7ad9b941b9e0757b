"""Images seen from several angles, of which one is believed: the surest, or the best drawn too.

A network that learned from upright images is asked about an image from even turns of a circle. The
surest answer may be that of a wrong angle: nothing in a classifier says that a 7 lying on its side
is no 2. A model that draws what it claims to see can be held to it: an answer is believed by

    log-odds of the claim - weight * squared error of the drawing

The weight is chosen on the validation images, as they are turned.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchcaps.analysis.accuracy import probabilities
from torchcaps.analysis.measures import Measure, register_measure
from torchcaps.data import Dataset, Split
from torchcaps.layers.turns import rotations, turned, undone
from torchcaps.models import CapsuleModel

WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
"""What is tried, in units of one by the usual error of the best angle."""


@dataclass
class Answers:
    """What a model says of N images from each of F angles."""

    classes: Tensor
    """The class that it claims [N,F]."""
    odds: Tensor
    """Log-odds of that claim [N,F]."""
    errors: Tensor | None
    """Squared errors of its drawings [N,F], where it draws."""
    labels: Tensor
    """[N]"""

    def accuracy(self, weight: float = 0.0) -> float:
        """The share that is right where each image's best angle is believed."""
        belief = self.odds
        if self.errors is not None and weight:
            belief = belief - weight * self.errors
        said = self.classes.gather(1, belief.argmax(1, keepdim=True))[:, 0]
        return float((said == self.labels).double().mean())

    def best_weight(self) -> float:
        assert self.errors is not None
        usual = float(self.errors.amin(1).median())
        return max((w / usual for w in WEIGHTS), key=self.accuracy)


@torch.no_grad()
def answers(model: CapsuleModel, split: Split, frames: int = 16) -> Answers:
    """Ask about every labelled image from even turns of a circle."""
    model.eval()
    draws = "decode" in model.provides
    found: list[tuple[Tensor, Tensor, Tensor | None]] = []
    labelled = split[(split.labels >= 0).nonzero()[:, 0]]
    for batch in labelled.batches(500):
        turns = rotations(frames, batch.images)
        seen = []
        for turn in turns:
            view = turned(batch.images, undone(turn).expand(len(batch), 2, 3))
            output = model.encode(view)
            claim, said = probabilities(output).max(1)
            error = None
            if draws and output.capsules is not None:
                drawn = model.decode(output.capsules, said)
                error = (drawn.float() - view).square().flatten(1).sum(1)
            seen.append((said, claim.clamp(1e-6, 1 - 1e-6).logit(), error))
        classes, odds, errors = zip(*seen, strict=True)
        joined = torch.stack(errors, 1) if errors[0] is not None else None
        found.append((torch.stack(classes, 1), torch.stack(odds, 1), joined))
    errors = [e for _, _, e in found if e is not None]
    return Answers(
        torch.cat([c for c, _, _ in found]),
        torch.cat([o for _, o, _ in found]),
        torch.cat(errors) if errors else None,
        labelled.labels,
    )


@register_measure("angles", ("angles_confidence", "angles_drawing"))
@dataclass
class Angles(Measure):
    """Accuracy where the surest of several angles is believed, and where its drawing counts too."""

    frames: int = 16
    """Angles from which each image is seen."""

    def __post_init__(self):
        super().__post_init__()
        self.weight = 0.0

    def learn(self, model: CapsuleModel, data: Dataset) -> None:
        if "decode" in model.provides:
            self.weight = answers(model, data.val, self.frames).best_weight()

    def score(self, model: CapsuleModel, data: Dataset, split: Split) -> dict[str, float]:
        found = answers(model, split, self.frames)
        numbers = {"angles_confidence": found.accuracy()}
        if found.errors is not None:
            numbers["angles_drawing"] = found.accuracy(self.weight)
        return numbers
