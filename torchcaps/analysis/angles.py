"""Images seen from several angles, of which one is believed: the surest, or the best drawn too.

A network that learned from upright images is asked about an image from even turns of a circle. The
surest answer (by its probability, or by its logit alone) may be that of a wrong angle: nothing in a
classifier says that a 7 lying on its side is no 2. A model that draws what it claims to see can be
held to it: an answer is believed by

    log-odds of the claim - weight * squared error of the drawing

The weight is chosen on the validation images, as they are turned.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchcaps.analysis.accuracy import logits_of, probabilities
from torchcaps.analysis.measures import Measure, register_measure
from torchcaps.data import Dataset, Split
from torchcaps.layers.turns import rotations, turned, undone
from torchcaps.models import CapsuleModel, Output

WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
"""What is tried, in units of one by the usual error of the best angle."""


@dataclass
class Answers:
    """What a model says of N images from each of F angles."""

    classes: Tensor
    """The class that it claims [N,F]."""
    odds: Tensor
    """Log-odds of that claim [N,F]."""
    logits: Tensor
    """The largest logit, which no other class holds down [N,F]."""
    errors: Tensor | None
    """Squared errors of its drawings [N,F], where it draws."""
    labels: Tensor
    """[N]"""

    def accuracy(self, weight: float = 0.0, by_logit: bool = False) -> float:
        """The share that is right where each image's best angle is believed."""
        belief = self.logits if by_logit else self.odds
        if self.errors is not None and weight:
            belief = belief - weight * self.errors
        said = self.classes.gather(1, belief.argmax(1, keepdim=True))[:, 0]
        return float((said == self.labels).double().mean())

    def best_weight(self) -> float:
        assert self.errors is not None
        usual = float(self.errors.amin(1).median())
        return max((w / usual for w in WEIGHTS), key=self.accuracy)


def claimed(output: Output) -> tuple[Tensor, Tensor]:
    """The class that a model claims, and the log-odds of it, each [B].

    Of a softmax not by its probability, of which many round to one.
    """
    if output.scores is not None:
        claim, said = probabilities(output).max(1)
        return said, claim.clamp(1e-6, 1 - 1e-6).logit()
    logits = logits_of(output).float()
    top, said = logits.max(1)
    return said, top - logits.scatter(1, said[:, None], -torch.inf).logsumexp(1)


@torch.no_grad()
def answers(model: CapsuleModel, split: Split, frames: int = 16) -> Answers:
    """Ask about every labelled image from even turns of a circle."""
    model.eval()
    draws = "decode" in model.provides
    found: list[tuple[Tensor, ...]] = []
    labelled = split[(split.labels >= 0).nonzero()[:, 0]]
    for batch in labelled.batches(500):
        turns = rotations(frames, batch.images)
        seen = []
        for turn in turns:
            view = turned(batch.images, undone(turn).expand(len(batch), 2, 3))
            output = model.encode(view)
            said, odds = claimed(output)
            answer = [said, odds, logits_of(output).float().amax(1)]
            if draws and output.capsules is not None:
                drawn = model.decode(output.capsules, said)
                answer.append((drawn.float() - view).square().flatten(1).sum(1))
            seen.append(answer)
        found.append(tuple(torch.stack(parts, 1) for parts in zip(*seen, strict=True)))
    classes, odds, logits, *errors = (torch.cat(parts) for parts in zip(*found, strict=True))
    return Answers(classes, odds, logits, errors[0] if errors else None, labelled.labels)


@register_measure("angles", ("angles_confidence", "angles_logit", "angles_drawing"))
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
        numbers = {
            "angles_confidence": found.accuracy(),
            "angles_logit": found.accuracy(by_logit=True),
        }
        if found.errors is not None:
            numbers["angles_drawing"] = found.accuracy(self.weight)
        return numbers
