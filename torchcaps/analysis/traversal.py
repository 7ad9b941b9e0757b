"""Latent traversal (perturb one unit of a capsule and decode) and reconstructions."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from torchcaps.analysis.charts import Grid
from torchcaps.analysis.matplotlib_figures import new_figure, show_grid
from torchcaps.analysis.plots import Arrays, Plot, few, register_plot
from torchcaps.analysis.routing_maps import example_image
from torchcaps.data import Dataset
from torchcaps.errors import TorchcapsError, UsageError
from torchcaps.models import Model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RANGE = tuple(i / 20 for i in range(-4, 5))
"""Offsets for squashed units: the range in the paper's text."""
WIDE = tuple(2.0 * i for i in range(-4, 5))
"""Offsets for unbounded units: the wider range in the paper's text."""
SHOWN_UNITS = 5
DECODED, FEWEST, LEAST_EXPLAINED = 64, 8, 0.02
"""Most and fewest images on which a decoder is judged, and the least share of variance that a
decoder explains which learned something."""


def _capsules(model: Model, images: Tensor) -> tuple[Tensor, Tensor]:
    """Capsules that the decoder reads [B,J,E], and the most active capsule of each image [B].

    Most active: that of the likeliest class; without classes the first by rank; without ranks the
    longest.
    """
    output = model.encode(images)
    poses, rankings = output.decoder_input, getattr(output, "rankings", ())
    if poses is None or "decode" not in model.provides:
        raise TorchcapsError("Latent traversal needs a model with capsules and a decoder.")
    if output.logits is not None:
        return poses, output.logits.argmax(-1)
    if rankings:
        return poses, rankings[-1].rank.argmin(-1)
    return poses, poses.norm(dim=-1).argmax(-1)


@torch.no_grad()
def traverse(
    model: Model,
    image: Tensor,
    unit: int | None = None,
    values: tuple[float, ...] | None = None,
    label: int | None = None,
) -> np.ndarray:
    """Add each of `values` to one unit (or to each in turn) of one capsule and decode.

    image [C,H,W] in [0,1] -> [units, values, C, H, W]; label: the capsule, by default the most
    active one
    """
    model.eval()
    poses, active = _capsules(model, image[None])
    values = value_range(model, image) if values is None else values
    index = int(active) if label is None else label
    capsules = poses[0]
    units = range(capsules.shape[1]) if unit is None else [unit]
    offsets = torch.zeros(len(units), len(values), *capsules.shape, device=capsules.device)
    for row, changed in enumerate(units):
        offsets[row, :, index, changed] = torch.tensor(values, device=capsules.device)
    perturbed = (capsules + offsets).flatten(0, 1)
    labels = torch.full((len(perturbed),), index, device=capsules.device)
    return model.decode(perturbed, labels).unflatten(0, (len(units), len(values))).cpu().numpy()


@torch.no_grad()
def value_range(model: Model, image: Tensor) -> tuple[float, ...]:
    """Offsets for one unit: `RANGE` if no capsule is longer than one, else `WIDE`."""
    poses, _ = _capsules(model, image[None])
    return RANGE if float(poses.norm(dim=-1).max()) <= 1 else WIDE


@torch.no_grad()
def reconstructions(model: Model, images: Tensor, labels: Tensor | None = None) -> np.ndarray:
    """Reconstruct images. images [B,C,H,W] -> [B,C,H,W]"""
    model.eval()
    if "reconstruct" not in model.provides:
        raise TorchcapsError("Reconstructions need a model with a decoder.")
    if "decode" not in model.provides:
        decoded = model(images).reconstruction
        assert decoded is not None
        return decoded.cpu().numpy()
    poses = model.encode(images).decoder_input
    assert poses is not None
    return model.decode(poses, labels).cpu().numpy()


@torch.no_grad()
def explained(model: Model, images: Tensor, labels: Tensor | None = None) -> tuple[float, float]:
    """Share of the variance between images that reconstructions explain, and the share that flat
    images explain, each in the mean color of its image. images [B,C,H,W]
    """
    decoded = torch.from_numpy(reconstructions(model, images, labels)).to(images)
    flat = images.mean((2, 3), keepdim=True)
    total = (images - images.mean(0)).square().sum().clamp(min=1e-12)
    shares = [1 - float((images - other).square().sum() / total) for other in (decoded, flat)]
    return shares[0], shares[1]


def nothing_learned(model: Model, data: Dataset) -> str:
    """Text in place of the images of a decoder that learned nothing; else empty."""
    if "reconstruct" not in model.provides or len(data.test) < FEWEST:
        return ""
    batch = few(data, DECODED)
    labels = batch.labels.reshape(len(batch), -1)[:, 0]
    known = labels if "logits" in model.provides and bool((labels >= 0).all()) else None
    share, flat = explained(model, batch.images, known)
    if share > max(LEAST_EXPLAINED, flat):
        return ""
    text = "The decoder learned nothing: its reconstructions explain "
    text += f"{100 * max(0.0, share):.0f} % of the variance between test images"
    return f"{text}, flat images in each one's mean color {100 * max(0.0, flat):.0f} %."


def draw_traversals(blocks: dict[str, tuple[np.ndarray, tuple[float, ...]]]) -> "Figure":
    """Figure of traversals, one block per model, with a row per unit and a column per offset."""
    first = next(iter(blocks.values()))[0]
    width, height = 0.55 * first.shape[1] + 0.8, 0.55 * first.shape[0] + 0.6
    figure = new_figure(width * len(blocks), height + 0.2)
    for axes, (name, (images, values)) in zip(
        figure.subplots(1, len(blocks), squeeze=False)[0], blocks.items(), strict=True
    ):
        show_grid(axes, images, [str(i) for i in range(len(images))], _signed(values))
        axes.set(xlabel="added to the unit", ylabel="unit of the capsule")
        axes.set_title(name, fontsize=8)
    return figure


def _signed(values: tuple[float, ...] | np.ndarray) -> list[str]:
    form = "{:+.2f}" if max(values) < 1 else "{:+.0f}"
    return [form.format(v) for v in values]


class DecoderPlot(Plot):
    """Base of plots of decoded images, which are blank if the decoder learned nothing."""

    def blank(self, model: Model, data: Dataset) -> str:
        return nothing_learned(model, data)


@register_plot("reconstructions")
class Reconstructions(DecoderPlot):
    title = "Reconstructions"
    order = 40
    description = (
        "Test images (top) and their reconstructions (bottom), from the capsule of the true class "
        "or, without classes, from all capsules."
    )
    needs = ("reconstruct",)

    def compute(self, model: Model, data: Dataset) -> Arrays:
        batch = few(data, 10)
        labels = batch.labels.reshape(len(batch), -1)[:, 0]
        decoded = reconstructions(
            model, batch.images, labels if bool((labels >= 0).all()) else None
        )
        return {"images": batch.images.cpu().numpy(), "decoded": decoded}

    def chart_of(self, values: Arrays) -> Grid:
        rows = np.stack([values["images"], values["decoded"]])
        return Grid(rows, ["input", "reconstruction"])


@register_plot("units")
class Units(DecoderPlot):
    title = "Latent traversal"
    order = 50
    description = (
        "Decoded images when one unit of the most active capsule of a test image changes (row: "
        "unit, column: offset); the five units with the largest effect."
    )
    needs = ("decode",)

    def compute(self, model: Model, data: Dataset) -> Arrays:
        image = example_image(data)
        values = value_range(model, image)
        decoded = traverse(model, image, values=values)
        unchanged = decoded[:, len(values) // 2 : len(values) // 2 + 1]
        effect = np.abs(decoded - unchanged).mean((1, 2, 3, 4))
        units = np.argsort(-effect, kind="stable")[:SHOWN_UNITS]
        return {
            "decoded": decoded[units], "units": units, "values": np.array(values),
            "effect": effect,
        }  # fmt: skip

    def chart_of(self, values: Arrays) -> Grid:
        names = [f"unit {unit}" for unit in values["units"]]
        return Grid(values["decoded"], names, _signed(values["values"]))


@register_plot("alone")
class Alone(DecoderPlot):
    title = "Single capsules"
    order = 45
    description = (
        "One test image, and reconstructions from each capsule of the last layer alone and from "
        "all capsules but this one."
    )
    needs = ("decode",)

    @torch.no_grad()
    def compute(self, model: Model, data: Dataset) -> Arrays:
        image = example_image(data)[None]
        poses = model.encode(image).decoder_input
        assert poses is not None
        count = poses.shape[1]
        only = torch.eye(count, device=poses.device)[..., None]
        labels = torch.arange(count, device=poses.device)
        return {
            "image": image.cpu().numpy()[0],
            "all": model.decode(poses)[0].cpu().numpy(),
            "alone": model.decode(poses * only, labels).cpu().numpy(),
            "without": model.decode(poses * (1 - only)).cpu().numpy(),
        }

    def chart_of(self, values: Arrays) -> Grid:
        first = np.zeros_like(values["alone"])
        first[0], first[-1] = values["image"], values["all"]
        rows = np.stack([first, values["alone"], values["without"]])
        return Grid(rows, ["input … all", "alone", "without"], inches=0.42)


@register_plot("traversal")
@dataclass(frozen=True)
class Traversal(Plot):
    """Units of the class capsule, as in Figure 4 of `robustness`.

    Squashed units move by 0.05 within 0.2, others by 2 within 8, as in the paper.
    """

    title = "Latent traversal of the first units"
    order = -1
    description = "A row per unit of the true class's capsule of one image, a column per offset."
    combines = True
    needs = ("decode",)
    image: int = 0
    """Number of the test image."""
    units: int = 4
    """Number of units, the first ones."""

    def compute(self, model: Model, data: Dataset) -> Arrays:
        if self.units < 1:
            raise UsageError(f"units={self.units}: it must be at least 1.")
        if not 0 <= self.image < len(data.test):
            last = len(data.test) - 1
            raise UsageError(f"image={self.image}: the test images are numbered 0 to {last}.")
        batch = data.test.batch(slice(self.image, self.image + 1))
        values = value_range(model, batch.images[0])
        label = int(batch.labels.reshape(-1)[0])
        images = traverse(model, batch.images[0], values=values, label=label)
        return {"images": images[: self.units], "values": np.array(values)}

    def figure(self, arrays: dict[str, Arrays]) -> "Figure":
        blocks = {name: (a["images"], tuple(a["values"])) for name, a in arrays.items()}
        return draw_traversals(blocks)
