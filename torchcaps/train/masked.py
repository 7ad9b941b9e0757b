"""Masked pretraining: the loss on removed patches, probes meanwhile, and pictures of it."""

from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

from torchcaps.data import Batch, Dataset, Split
from torchcaps.errors import TorchcapsError
from torchcaps.layers.patches import from_patches, to_patches
from torchcaps.models.mcae import MCAE
from torchcaps.probes import KNN, Linear
from torchcaps.train.recipe import LossSpec


def patch_targets(images: Tensor, size: int, spec: LossSpec) -> Tensor:
    """Pixels of every patch, or those less their patch's mean and by its spread. -> [B,L,P]"""
    patches = to_patches(images, size)
    if spec.target == "pixels":
        return patches
    mean, spread = patches.mean(-1, keepdim=True), patches.std(-1, keepdim=True)
    return (patches - mean) / (spread + 1e-3)


def masked_loss(model: nn.Module, batch: Batch, spec: LossSpec) -> dict[str, Tensor]:
    """Mean squared error over the pixels of removed patches; of all, with `--loss.whole`."""
    output = model(batch.images)
    if output.hidden is None:
        raise TorchcapsError("The objective 'masked' needs a model that hides patches.")
    # Under DDP the model is wrapped, so the size of a patch comes from the shapes.
    size = round((batch.images.shape[-1] ** 2 / output.hidden.shape[1]) ** 0.5)
    drawn = to_patches(output.reconstruction.float(), size)
    error = (drawn - patch_targets(batch.images, size, spec)).square().mean(-1)
    counted = torch.ones_like(error) if spec.whole else output.hidden.float()
    return {"loss": (error * counted).sum() / counted.sum()}


def frozen_features(model: MCAE, images: Tensor) -> Tensor:
    """Poses weighed by activations and activations, averaged over positions. -> [B,I*D+I]"""
    poses, active = model.encode(images)
    weighed = (poses * active[..., None]).float().mean(1).flatten(1)
    return torch.cat([weighed, active.float().mean(1)], 1)


@torch.no_grad()
def evaluate_masked(
    model: nn.Module, split: Split, spec: LossSpec, batch_size: int = 500
) -> dict[str, float]:
    loss = torch.zeros((), device=split.images.device)
    for batch in split.batches(batch_size):
        loss += masked_loss(model, batch, spec)["loss"] * len(batch)
    return {"loss": float(loss) / len(split)}


@torch.no_grad()
def probe(
    model: nn.Module, data: Dataset, split: Split, batch_size: int = 500, fitted: int = 5000
) -> dict[str, float]:
    """How well frozen capsules of labelled training images, at most `fitted`, class a split's.

    Without single labels: nothing.
    """
    device, labels = split.images.device, data.train.labels.to(split.images.device)
    labelled = (labels >= 0).nonzero()[:, 0] if labels.ndim == 1 else labels[:0]
    scored = split.labels.ndim == 1 and int(split.labels.min()) >= 0
    if not (len(labelled) and scored and isinstance(model, MCAE)):
        return {}
    count = min(fitted, len(labelled))
    rows = labelled[torch.linspace(0, len(labelled) - 1, count, device=device).round().long()]
    known = [frozen_features(model, data.training(r, r).images) for r in rows.split(batch_size)]
    others = torch.cat([frozen_features(model, b.images) for b in split.batches(batch_size)])
    found = {}
    for name, learner in (("linear", Linear()), ("knn", KNN())):
        learner.fit(torch.cat(known), labels[rows])
        found[f"{name}_accuracy"] = learner.score(others, split.labels)
    return found


@torch.no_grad()
def picture(
    model: nn.Module, split: Split, spec: LossSpec, path: Path | None, count: int = 8
) -> None:
    """Inputs, what is left of them, and what the model draws of the rest, as rows of a PNG.

    Every process of a run takes part in the forward pass; those without a path write nothing.
    """
    spread = torch.linspace(0, len(split) - 1, count, device=split.images.device).long()
    images = split.batch(spread).images  # over the whole split: it may be sorted by class
    output = model(images)
    if path is None:
        return
    size = round((images.shape[-1] ** 2 / output.hidden.shape[1]) ** 0.5)
    patches, hidden = to_patches(images, size), output.hidden[..., None]
    drawn = to_patches(output.reconstruction.float(), size)
    if spec.target == "normalised":
        mean, spread = patches.mean(-1, keepdim=True), patches.std(-1, keepdim=True)
        drawn = drawn * (spread + 1e-3) + mean
    side = images.shape[-1] // size
    rows = [patches, torch.where(hidden, 0.5, patches), torch.where(hidden, drawn, patches)]
    grid = torch.cat([torch.cat(list(from_patches(r, size, side)), 2) for r in rows], 1)
    pixels = (grid.clamp(0, 1) * 255).round().to(torch.uint8).cpu().permute(1, 2, 0).numpy()
    shown = Image.fromarray(pixels[..., 0] if pixels.shape[2] != 3 else pixels)
    path.parent.mkdir(parents=True, exist_ok=True)
    scale = max(1, 64 // images.shape[-1])
    shown.resize((shown.width * scale, shown.height * scale), Image.Resampling.NEAREST).save(path)
