"""Where the children of each parent sit in the image."""

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from torchcaps.errors import TorchcapsError
from torchcaps.models import CapsuleModel


@torch.no_grad()
def routing_map(model: CapsuleModel, image: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Coupling of one image, summed over capsule types with each child's length as its weight.

    image [C,H,W] -> coupling [I,J], map [J,H',W'] (what each parent receives from each position)
    """
    model.eval()
    output = model(image[None], coupling=True, reconstruct=False)
    if output.coupling is None or output.primary is None:
        raise TorchcapsError("This model has no routing to show.")
    num_types = getattr(model.config, "num_types", 1)
    coupling, lengths = output.coupling[0], output.primary[0].norm(dim=-1)
    side = round((len(coupling) // num_types) ** 0.5)
    if len(coupling) != len(lengths) or side * side * num_types != len(coupling):
        raise TorchcapsError("Its classes do not route from primary capsules on a square grid.")
    received = (coupling * lengths[:, None]).reshape(side, side, num_types, -1).sum(2)
    return coupling.cpu().numpy(), received.permute(2, 0, 1).cpu().numpy()


def draw_coupling(image: np.ndarray, received: np.ndarray, classes: tuple[str, ...]) -> Figure:
    """The image, then one map a parent, all on one scale."""
    shown = min(len(received), 10)
    figure = Figure(figsize=(1.1 * (shown + 1), 1.6), layout="constrained")
    axes = figure.subplots(1, shown + 1)
    axes[0].imshow(image.transpose(1, 2, 0).squeeze(), cmap="gray")
    axes[0].set_title("image", fontsize=8)
    for j in range(shown):
        axes[j + 1].imshow(received[j], cmap="magma", vmin=0, vmax=received[:shown].max())
        axes[j + 1].set_title(f"to {classes[j]}", fontsize=8)
    for axis in axes:
        axis.set_axis_off()
    return figure
