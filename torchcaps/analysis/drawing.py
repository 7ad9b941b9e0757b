"""What one unit of a capsule draws: perturb it and decode; and what a decoder draws at all."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from torchcaps.analysis.drawings import Grid
from torchcaps.analysis.figure import new_figure, show_grid
from torchcaps.analysis.views import Arrays, View, few, lacks, register_view
from torchcaps.data import Dataset
from torchcaps.errors import TorchcapsError
from torchcaps.models import CapsuleModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RANGE = tuple(i / 20 for i in range(-4, 5))
"""Added to squashed units: the range of the text."""
WIDE = tuple(2.0 * i for i in range(-4, 5))
"""Added to units without a bound: the range that the text had to go to."""
SHOWN_UNITS = 5


def _capsules(model: CapsuleModel, images: Tensor) -> tuple[Tensor, Tensor]:
    """Capsules that a decoder reads [B,J,E], and of each image that of the likeliest class, without
    classes the first by rank, without ranks the longest [B].
    """
    output = model.encode(images)
    poses, rankings = output.drawable, getattr(output, "rankings", ())
    if poses is None or "decode" not in model.provides:
        raise TorchcapsError("Only a model with capsules and a decoder can be traversed.")
    if output.logits is not None:
        return poses, output.logits.argmax(-1)
    if rankings:
        return poses, rankings[-1].rank.argmin(-1)
    return poses, poses.norm(dim=-1).argmax(-1)


@torch.no_grad()
def traverse(
    model: CapsuleModel,
    image: Tensor,
    unit: int | None = None,
    values: tuple[float, ...] | None = None,
    label: int | None = None,
) -> np.ndarray:
    """Add each of `values` to one unit (or to each in turn) of one capsule and decode.

    image [C,H,W] in [0,1] -> [units, values, C, H, W]; label: which capsule, by default the most
    active
    """
    model.eval()
    poses, active = _capsules(model, image[None])
    values = value_range(model, image) if values is None else values
    chosen = int(active) if label is None else label
    capsules = poses[0]
    units = range(capsules.shape[1]) if unit is None else [unit]
    offsets = torch.zeros(len(units), len(values), *capsules.shape, device=capsules.device)
    for row, which in enumerate(units):
        offsets[row, :, chosen, which] = torch.tensor(values, device=capsules.device)
    moved = (capsules + offsets).flatten(0, 1)
    labels = torch.full((len(moved),), chosen, device=capsules.device)
    drawn = model.decode(moved, labels)
    return drawn.unflatten(0, (len(units), len(values))).cpu().numpy()


@torch.no_grad()
def value_range(model: CapsuleModel, image: Tensor) -> tuple[float, ...]:
    """What to add to a unit: little where every capsule is shorter than one, more elsewhere."""
    poses, _ = _capsules(model, image[None])
    return RANGE if float(poses.norm(dim=-1).max()) <= 1 else WIDE


@torch.no_grad()
def reconstructions(
    model: CapsuleModel, images: Tensor, labels: Tensor | None = None
) -> np.ndarray:
    """images [B,C,H,W] -> what the decoder draws of them [B,C,H,W]"""
    model.eval()
    if "redraw" not in model.provides:
        raise TorchcapsError("Only a model with a decoder reconstructs.")
    if "decode" not in model.provides:
        drawn = model(images).reconstruction
        assert drawn is not None
        return drawn.cpu().numpy()
    poses = model.encode(images).drawable
    assert poses is not None
    return model.decode(poses, labels).cpu().numpy()


def draw_traversal(drawn: np.ndarray, values: tuple[float, ...] = RANGE) -> "Figure":
    """A row a unit, a column a value."""
    return draw_traversals({"": (drawn, values)})


def draw_traversals(blocks: dict[str, tuple[np.ndarray, tuple[float, ...]]]) -> "Figure":
    """A block a model; in it a row a unit, a column a value."""
    first = next(iter(blocks.values()))[0]
    width, height = 0.55 * first.shape[1] + 0.8, 0.55 * first.shape[0] + 0.6
    figure = new_figure(width * len(blocks), height + 0.2)
    for axes, (name, (drawn, values)) in zip(
        figure.subplots(1, len(blocks), squeeze=False)[0], blocks.items(), strict=True
    ):
        show_grid(axes, drawn, [str(i) for i in range(len(drawn))], _signed(values))
        axes.set(xlabel="added to the unit", ylabel="unit of the capsule")
        axes.set_title(name, fontsize=8)
    return figure


def _signed(values: tuple[float, ...] | np.ndarray) -> list[str]:
    form = "{:+.2f}" if max(values) < 1 else "{:+.0f}"
    return [form.format(v) for v in values]


@register_view("reconstructions")
class Reconstructions(View):
    title = "Reconstructions"
    place = 40
    words = (
        "Test images, and below each what the decoder draws: from the capsule of its class, or "
        "without classes from all capsules that it sees."
    )

    def applies(self, model: CapsuleModel, data: Dataset) -> str:
        return lacks(model, data, "redraw")

    def compute(self, model: CapsuleModel, data: Dataset) -> Arrays:
        batch = few(data, 10)
        labels = batch.labels.reshape(len(batch), -1)[:, 0]
        known = labels if bool((labels >= 0).all()) else None
        drawn = reconstructions(model, batch.images, known)
        return {"images": batch.images.cpu().numpy(), "drawn": drawn}

    def drawing(self, found: dict[str, Arrays]) -> Grid:
        (arrays,) = found.values()
        return Grid(np.stack([arrays["images"], arrays["drawn"]]), ["input", "drawn"])


@register_view("units")
class Units(View):
    title = "What units draw"
    place = 50
    words = (
        "Each row adds to one unit of the most active capsule of one test image, and decodes; the "
        "five units that change the drawing most."
    )

    def applies(self, model: CapsuleModel, data: Dataset) -> str:
        return lacks(model, data, "decode")

    def compute(self, model: CapsuleModel, data: Dataset) -> Arrays:
        batch = few(data, 12)
        image = batch.images[len(batch) // 3]
        values = value_range(model, image)
        drawn = traverse(model, image, values=values)
        still = drawn[:, len(values) // 2 : len(values) // 2 + 1]
        effect = np.abs(drawn - still).mean((1, 2, 3, 4))
        units = np.argsort(-effect, kind="stable")[:SHOWN_UNITS]
        return {"drawn": drawn[units], "units": units, "values": np.array(values), "effect": effect}

    def drawing(self, found: dict[str, Arrays]) -> Grid:
        (arrays,) = found.values()
        names = [f"unit {unit}" for unit in arrays["units"]]
        return Grid(arrays["drawn"], names, _signed(arrays["values"]))
