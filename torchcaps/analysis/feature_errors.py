"""Feature errors: how well the poses of classes decode to the feature maps of a photograph."""

import numpy as np
import torch

from torchcaps.analysis.charts import Maps
from torchcaps.analysis.plots import Arrays, Plot, register_plot
from torchcaps.analysis.routing_maps import example_image, likeliest_classes
from torchcaps.data import Dataset
from torchcaps.models import Model
from torchcaps.models.photos import PhotoModel


@register_plot("feature-errors")
class FeatureErrors(Plot):
    title = "Reconstruction error of features"
    order = 63
    description = (
        "One test photograph, and the mean squared error of the features at each position, as the "
        "pose of each of the likeliest classes decodes to them; with each class its mean over "
        "positions. 1 is on average the error of predicting the mean of the training features."
    )
    needs = ("logits", "feature-decoder")

    @torch.no_grad()
    def compute(self, model: Model, data: Dataset) -> Arrays:
        assert isinstance(model, PhotoModel)
        image = example_image(data)
        likeliest = likeliest_classes(model, image)
        errors = model.position_errors(image[None], likeliest[None])[0]
        return {
            "image": image.cpu().numpy(),
            "errors": errors.float().cpu().numpy(),
            "classes": np.array(data.classes)[likeliest.cpu().numpy()],
        }

    def chart_of(self, values: Arrays) -> Maps:
        named = zip(values["classes"], values["errors"].mean((1, 2)), strict=True)
        names = [f"{name}: {error:.2f}" for name, error in named]
        return Maps(values["image"], values["errors"], names, "squared error")
