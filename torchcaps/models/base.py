"""What every model shares: its configuration, its named intermediates, saving and loading."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from huggingface_hub import ModelCard, PyTorchModelHubMixin, snapshot_download
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.errors import TorchcapsError


@dataclass(frozen=True)
class ModelConfig:
    """Fields of every family; the loop fills these three from the data set."""

    family: ClassVar[str] = ""
    in_channels: int = 1
    image_size: int = 28
    num_classes: int = 10

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.in_channels, self.image_size, self.image_size


CHOSEN = {"val": "validation", "test": "test"}
"""The split that chose an epoch, in words."""


def _letters(letters: str, what: str) -> Any:
    return field(default=None, metadata={"letters": letters, "what": what})


@dataclass
class Output:
    """Every intermediate by name; None where a model has no such thing or it was not asked for."""

    logits: Tensor = field(metadata={"letters": "[B,Y]", "what": "class scores"})
    lengths: Tensor | None = _letters(
        "[B,Y]", "lengths of class capsules: probabilities, if squashed"
    )
    features: Tensor | None = _letters("[B,C,H,W]", "feature maps before the capsules")
    primary: Tensor | None = _letters("[B,I,D]", "poses of the primary capsules")
    coupling: Tensor | None = _letters("[B,I,J]", "share of each child that goes to each parent")
    capsules: Tensor | None = _letters("[B,J,E]", "poses of the class capsules")
    reconstruction: Tensor | None = _letters("[B,C,H,W]", "the image drawn from the capsules")
    hidden: Tensor | None = _letters("[B,L]", "patches that were removed before the model saw them")


class CapsuleModel(
    nn.Module,
    PyTorchModelHubMixin,
    library_name="torchcaps",
    license="apache-2.0",
    tags=["capsules"],
):
    """Base of all models: `model(images) -> Output`.

    With `labels` [B] (or [B,M]: several objects) a conditional decoder draws those classes, without
    them the likeliest. `coupling=True` returns the routing coefficients, `reconstruct=False` skips
    the decoder.
    """

    config: ModelConfig
    decoder: nn.Module | None
    record: dict[str, Any] | None = None
    """The measured numbers of the run that these weights come from, where known."""

    def decode(self, capsules: Tensor, labels: Tensor) -> Tensor:
        """capsules [B,J,E], labels [B] or [B,M] -> images [B,C,H,W] or [B,M,C,H,W]"""
        raise TorchcapsError(f"{type(self).__name__} with this configuration has no decoder.")

    @property
    def num_parameters(self) -> int:
        return sum(p.numel() for p in self.parameters())

    def save_pretrained(self, save_directory, *, config=None, **kwargs):  # pyright: ignore
        config = {"family": self.config.family, **asdict(self.config)}
        return super().save_pretrained(save_directory, config=config, **kwargs)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, **options):  # pyright: ignore
        """A saved folder or a hub id, of whatever family; options go to the download."""
        from torchcaps.models.registry import from_folder  # which builds these classes by name

        folder = Path(pretrained_model_name_or_path)
        if not folder.is_dir():
            folder = Path(snapshot_download(str(pretrained_model_name_or_path), **options))
        return from_folder(folder)

    def generate_model_card(self, *args, **kwargs) -> ModelCard:
        """A card with the numbers that the run measured, and nothing that it did not."""
        lines = [
            "---", "library_name: torchcaps", "license: apache-2.0", "tags: [capsules]", "---",
            f"# {self.config.family}",
            f"{self.num_parameters:,} parameters. Load it with "
            "`torchcaps.load(\"<this repository>\")`.",
            "## Configuration", "| field | value |", "| --- | --- |",
            *(f"| {name} | {value} |" for name, value in asdict(self.config).items()),
        ]  # fmt: skip
        if self.record:
            lines += [
                "## Measured",
                "| data | split | metric | value |",
                "| --- | --- | --- | --- |",
            ]
            lines += [
                f"| {r['data']} | {r['split']} | {r['metric']} | {r['value']:.4f} |"
                for r in self.record["results"]
            ]
            recipe, run = self.record["recipe"], self.record
            lines += [
                f"\nRecipe `{recipe['name']}`, seed {recipe['seed']}, commit `{run['commit']}`, "
                f"{run['device']}, {run['date']}. The checkpoint was chosen on "
                f"{CHOSEN[recipe.get('stop_on', 'val')]} data."
            ]
        return ModelCard("\n".join(lines) + "\n")


def mask_capsules(capsules: Tensor, labels: Tensor) -> Tensor:
    """Zero every class capsule but the labelled one (-1: all of them).

    capsules [B,J,E], labels [B] or [B,M] -> units [B,JE] or [B,M,JE]
    """
    keep = F.one_hot(labels.clamp(min=0), capsules.shape[1]) * (labels >= 0)[..., None]
    shape = (len(capsules),) + (1,) * (labels.ndim - 1) + capsules.shape[1:]
    return (capsules.reshape(shape) * keep[..., None].to(capsules.dtype)).flatten(-2)


def conditional_labels(labels: Tensor | None, scores: Tensor) -> Tensor:
    """The classes to draw: the given ones, or the likeliest."""
    return torch.argmax(scores, -1) if labels is None else labels
