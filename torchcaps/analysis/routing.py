"""Where the children of each parent sit in the image."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from torchcaps.analysis.drawings import Maps
from torchcaps.analysis.views import Arrays, View, few, lacks, register_view
from torchcaps.data import Dataset
from torchcaps.errors import TorchcapsError
from torchcaps.models import CapsuleModel, Output

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN_CLASSES = 5


def received_by(output: Output) -> tuple[Tensor, Tensor]:
    """Coupling [I,J] of the last layer for the first image, and its map [J,H,W]; see routing_map"""
    if len(output.layers) < 2 or output.coupling is None:
        raise TorchcapsError("This model has no routing to show.")
    below, coupling = output.layers[-2], output.coupling[0]
    weight = below.poses.norm(dim=-1) if below.activations is None else below.activations
    weight = weight[0]
    if coupling.dim() == 3:  # inside each position of a sequence
        side = round(len(coupling) ** 0.5)
        if side * side != len(coupling):
            raise TorchcapsError("Its positions are no square grid.")
        weight, coupling = weight.unflatten(0, (side, side)), coupling.flatten(0, 1)
    if weight.dim() != 3:
        raise TorchcapsError("Its classes do not route from capsules on a grid.")
    sent = coupling.reshape(*weight.shape, -1) * weight[..., None]
    return coupling, sent.sum(2).permute(2, 0, 1)


@torch.no_grad()
def routing_map(model: CapsuleModel, image: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Coupling of the last layer, summed over capsule types with each child's activation, or else
    its length, as its weight.

    image [C,H,W] -> coupling [I,J], map [J,H',W'] (what each parent receives from each position)
    """
    model.eval()
    coupling, received = received_by(model.encode(image[None], coupling=True))
    return coupling.float().cpu().numpy(), received.float().cpu().numpy()


def draw_coupling(
    image: np.ndarray, received: np.ndarray, names: list[str], columns: int = 3
) -> "Figure":
    """Each parent's map over the image, all on one scale. image [C,H,W], received [J,H',W']"""
    return Maps(image, received, names, "received", columns).figure()


@register_view("where")
class Where(View):
    title = "Where classes look"
    place = 60
    words = (
        "One test image, and over it what the likeliest classes receive from each position: "
        "coupling times the child's length or activation, summed over types."
    )

    def _image(self, data: Dataset) -> Tensor:
        batch = few(data, 12)
        return batch.images[len(batch) // 3]

    @torch.no_grad()
    def applies(self, model: CapsuleModel, data: Dataset) -> str:
        reason = lacks(model, data, "logits")
        if reason:
            return reason
        try:
            coupling, _ = received_by(model.encode(self._image(data)[None], coupling=True))
        except TorchcapsError as error:
            return str(error)
        if bool((coupling == coupling.flatten()[0]).all()):
            return "Every child gives every class the same share."
        return ""

    @torch.no_grad()
    def compute(self, model: CapsuleModel, data: Dataset) -> Arrays:
        image = self._image(data)
        output = model.encode(image[None], coupling=True)
        assert output.logits is not None
        _, received = received_by(output)
        likeliest = output.logits[0].argsort(descending=True)[:SHOWN_CLASSES]
        chosen = likeliest.cpu().numpy()
        return {
            "image": image.cpu().numpy(),
            "received": received[likeliest].float().cpu().numpy(),
            "classes": np.array(data.classes)[chosen],
        }

    def drawing(self, found: dict[str, Arrays]) -> Maps:
        (arrays,) = found.values()
        names = [str(name) for name in arrays["classes"]]
        return Maps(arrays["image"], arrays["received"], names, "received")
