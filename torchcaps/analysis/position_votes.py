"""Votes by position: how much each place of a photograph speaks for a class."""

import numpy as np
import torch

from torchcaps.analysis.charts import Maps
from torchcaps.analysis.plots import Arrays, Plot, register_plot
from torchcaps.analysis.routing_maps import example_image, likeliest_classes
from torchcaps.data import Dataset
from torchcaps.models import Model
from torchcaps.models.photos import PhotoModel


@register_plot("votes")
class Votes(Plot):
    title = "Votes by position"
    order = 62
    description = (
        "One test photograph, and how much each position speaks for the likeliest classes: of "
        "capsules the coupling to the class times the vote along its pose, of heads without "
        "capsules the probability or logit at the position; values below zero are zero."
    )
    needs = ("logits",)

    def lacks(self, model: Model, data: Dataset) -> str:
        if isinstance(model, PhotoModel):
            return super().lacks(model, data)
        return "It needs a model with a head on feature maps, such as capsule-head."

    @torch.no_grad()
    def compute(self, model: Model, data: Dataset) -> Arrays:
        assert isinstance(model, PhotoModel)
        image = example_image(data)
        likeliest = likeliest_classes(model, image)
        votes = model.position_votes(image[None], likeliest[None])[0].clamp(min=0)
        return {
            "image": image.cpu().numpy(),
            "votes": votes.float().cpu().numpy(),
            "classes": np.array(data.classes)[likeliest.cpu().numpy()],
        }

    def chart_of(self, values: Arrays) -> Maps:
        names = [str(name) for name in values["classes"]]
        return Maps(values["image"], values["votes"], names, "vote")
