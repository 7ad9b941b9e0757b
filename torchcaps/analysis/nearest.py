"""Nearest training images: those in which the pose of a class is most like that of an image."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps.analysis.charts import Shots
from torchcaps.analysis.plots import Arrays, Plot, evenly, few, register_plot
from torchcaps.data import Dataset
from torchcaps.errors import TorchcapsError
from torchcaps.metrics.accuracy import logits_of
from torchcaps.models import Model

MAX_IMAGES = 2000
"""Training images that are compared, evenly over the split."""
BATCH = 100
THUMBNAIL = 96
"""Longest side of a training image that is shown."""


class Nearest(NamedTuple):
    """Nearest training images of each image, the nearest first."""

    predicted: Tensor
    """The class whose poses are compared [B]."""
    rows: Tensor
    """Numbers of the training images [B,K]."""
    similarity: Tensor
    """Cosine of the poses [B,K]."""


class TrainingPoses:
    """Class poses of training images; those of a class are computed when it is first predicted."""

    def __init__(self, model: Model, data: Dataset):
        rows = evenly(len(data.train), MAX_IMAGES)
        self.model, self.split = model, data.train[rows.to(data.train.labels.device)]
        self.inputs = model.with_features(self.split)
        self.by_class: dict[int, Tensor] = {}

    @torch.no_grad()
    def nearest(self, images: Tensor, count: int) -> Nearest:
        """images [B,C,H,W]"""
        predicted = logits_of(self.model.encode(images)).argmax(1)
        classes, index = predicted.unique(return_inverse=True)
        own = self.model.class_vectors(images, classes)[torch.arange(len(images)), index]
        own = F.normalize(own.float(), dim=1)
        self._add(classes)
        cosines = [self.by_class[int(c)] @ own[n] for n, c in enumerate(predicted)]
        similarity, rows = torch.stack(cosines).topk(min(count, len(self.split)), 1)
        return Nearest(predicted, rows, similarity)

    def _add(self, classes: Tensor) -> None:
        """Compute the poses of classes that have none yet."""
        new = classes[[int(c) not in self.by_class for c in classes]]
        if not len(new):
            return
        batches = self.inputs.batches(BATCH)
        vectors = torch.cat([self.model.class_vectors(b.images, new) for b in batches])
        vectors = F.normalize(vectors.float(), dim=2)
        self.by_class |= dict(zip(new.tolist(), vectors.unbind(1), strict=True))

    def thumbnails(self, rows: Tensor) -> Tensor:
        """Training images by their numbers [K], small. -> [K,C,h,w]"""
        return thumbnails(self.split.batch(rows).images)


def thumbnails(images: Tensor) -> Tensor:
    """Images of at most THUMBNAIL pixels a side. [B,C,H,W] -> [B,C,h,w]"""
    shrunk = max(images.shape[2:]) / THUMBNAIL
    if shrunk <= 1:
        return images
    size = [max(1, round(side / shrunk)) for side in images.shape[2:]]
    return F.interpolate(images, size, mode="area")


@torch.no_grad()
def why_no_poses(model: Model, data: Dataset) -> str:
    """Why no training images can be compared by their class poses; empty if they can."""
    if data.render is not None or tuple(data.train.images.shape[1:]) != model.config.image_shape:
        return "Its training images are generated."
    try:
        model.class_vectors(few(data, 1).images, torch.zeros(1, dtype=torch.long))
    except TorchcapsError as error:
        return str(error)
    return ""


def label_name(labels: Tensor, classes: tuple[str, ...]) -> str:
    """Names of the labels of an image, a number or several."""
    return ", ".join(classes[n] for n in labels.reshape(-1).tolist() if n >= 0) or "not known"


@register_plot("nearest")
@dataclass
class NearestImages(Plot):
    title = "Nearest training images"
    order = 64
    description = (
        "Test images with the predicted and, if it differs, the true class. Beside each the "
        "training images whose pose of the predicted class is nearest, with their true class and "
        "the cosine of the two poses. The class capsules of self-routing have no poses: there it "
        "is the sum of the poses that the class receives."
    )
    needs = ("logits",)

    images: int = 5
    neighbors: int = 5

    def lacks(self, model: Model, data: Dataset) -> str:
        return super().lacks(model, data) or why_no_poses(model, data)

    def compute(self, model: Model, data: Dataset) -> Arrays:
        batch, poses = few(data, self.images), TrainingPoses(model.eval(), data)
        nearest = poses.nearest(batch.images, self.neighbors)
        shown = [torch.cat([thumbnails(image[None]), poses.thumbnails(rows)])
                 for image, rows in zip(batch.images, nearest.rows, strict=True)]  # fmt: skip
        labels = [[label_name(poses.split.labels[row], data.classes) for row in rows]
                  for rows in nearest.rows]  # fmt: skip
        return {
            "images": torch.stack(shown).cpu().numpy(),
            "true": np.array([label_name(label, data.classes) for label in batch.labels]),
            "predicted": np.array(data.classes)[nearest.predicted.cpu().numpy()],
            "neighbors": np.array(labels),
            "similarity": nearest.similarity.cpu().numpy(),
        }

    def chart_of(self, values: Arrays) -> Shots:
        captions = []
        for row, predicted in enumerate(values["predicted"]):
            true = values["true"][row]
            mistake = f"\ntrue: {true}" if true != predicted else ""
            captions.append(f"predicted: {predicted}{mistake}")
            for name, cosine in zip(
                values["neighbors"][row], values["similarity"][row], strict=True
            ):
                captions.append(f"{name}\n{cosine:.3f}")
        images = values["images"]
        return Shots(images.reshape(-1, *images.shape[2:]), captions, "no images", images.shape[1])
