"""Routing maps: what each parent capsule receives from each image position."""

import numpy as np
import torch
from torch import Tensor

from torchcaps.analysis.charts import Maps
from torchcaps.analysis.plots import Arrays, Plot, few, register_plot
from torchcaps.data import Dataset
from torchcaps.errors import TorchcapsError
from torchcaps.models import Model, Output

SHOWN_CLASSES = 5


def example_image(data: Dataset) -> Tensor:
    """The test image of plots of a single image. -> [C,H,W]"""
    batch = few(data, 12)
    return batch.images[len(batch) // 3]


@torch.no_grad()
def likeliest_classes(model: Model, image: Tensor) -> Tensor:
    """Classes that plots of a single image show, the likeliest first. image [C,H,W] -> [K]"""
    logits = model.eval().encode(image[None]).logits
    assert logits is not None
    return logits[0].argsort(descending=True)[:SHOWN_CLASSES]


def received_by(output: Output) -> tuple[Tensor, Tensor]:
    """Coupling [I,J] of the last layer for the first image, and its map [J,H,W] (`routing_map`)."""
    if len(output.layers) < 2 or output.coupling is None:
        raise TorchcapsError("This model has no routing.")
    below, coupling = output.layers[-2], output.coupling[0]
    weight = below.poses.norm(dim=-1) if below.activations is None else below.activations
    weight = weight[0]
    if coupling.dim() == 3:  # one coupling for each position of a sequence
        side = round(len(coupling) ** 0.5)
        if side * side != len(coupling):
            raise TorchcapsError("Its positions do not form a square grid.")
        weight, coupling = weight.unflatten(0, (side, side)), coupling.flatten(0, 1)
    if weight.dim() != 3:
        raise TorchcapsError("Its classes are not routed from capsules on a grid.")
    sent = coupling.reshape(*weight.shape, -1) * weight[..., None]
    return coupling, sent.sum(2).permute(2, 0, 1)


@torch.no_grad()
def why_no_map(model: Model, image: Tensor) -> str:
    """Why a model has no routing map of an image [C,H,W]; empty if it has one."""
    try:
        coupling, _ = received_by(model.encode(image[None], coupling=True))
    except TorchcapsError as error:
        return str(error)
    return "All couplings are equal." if bool((coupling == coupling.flatten()[0]).all()) else ""


@torch.no_grad()
def routing_map(model: Model, image: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Coupling of the last layer, and its weighted sum over capsule types at each position.

    A child's weight is its activation, or its length if it has no activation.

    image [C,H,W] -> coupling [I,J], map [J,H',W'] (what each parent receives from each position)
    """
    model.eval()
    coupling, received = received_by(model.encode(image[None], coupling=True))
    return coupling.float().cpu().numpy(), received.float().cpu().numpy()


@register_plot("where")
class Where(Plot):
    title = "Routing maps"
    order = 60
    description = (
        "One test image, and what the likeliest classes receive from each position: coupling "
        "times the length or activation of the child capsule, summed over types."
    )
    needs = ("logits",)

    def lacks(self, model: Model, data: Dataset) -> str:
        return super().lacks(model, data) or why_no_map(model, example_image(data))

    @torch.no_grad()
    def compute(self, model: Model, data: Dataset) -> Arrays:
        image = example_image(data)
        output = model.encode(image[None], coupling=True)
        assert output.logits is not None
        _, received = received_by(output)
        likeliest = output.logits[0].argsort(descending=True)[:SHOWN_CLASSES]
        return {
            "image": image.cpu().numpy(),
            "received": received[likeliest].float().cpu().numpy(),
            "classes": np.array(data.classes)[likeliest.cpu().numpy()],
        }

    def chart_of(self, values: Arrays) -> Maps:
        names = [str(name) for name in values["classes"]]
        return Maps(values["image"], values["received"], names, "received")
