"""Base of every model: its configuration, its named intermediates, its methods."""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.data import Dataset, Split
from torchcaps.data.value_range import Range
from torchcaps.errors import TorchcapsError
from torchcaps.layers import Capsules
from torchcaps.layers.routers import shapes
from torchcaps.models.fields import Count, CountOrNone, Side, SideOrNone
from torchcaps.models.heads import reset_classes
from torchcaps.models.hub import download, model_card, preprocessing, upload, write_folder
from torchcaps.models.predict import BATCH_SIZE, Prediction, predict
from torchcaps.models.tracing import Passes, trace_layers

CONFIG_VERSION = 1
"""Version of config.json; another one is refused."""
SIZES = ("in_channels", "image_size", "image_width", "num_classes")
"""Fields of a configuration that the data decides."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Fields of every family; training fills these from the data set.

    >>> config = torchcaps.create_model("capsnet-small", image_size=40).config
    >>> config.image_shape
    (1, 40, 40)
    """

    family: ClassVar[str] = ""
    revision: ClassVar[int] = 1
    """Raised when a change of the family's code changes what its recipes measure."""
    oblong: ClassVar[bool] = False
    """The family takes images that are not square."""
    in_channels: Count = 1
    """Channels of the images."""
    image_size: Side = 28
    """Side of the images in pixels; the height of rectangular images."""
    num_classes: CountOrNone = 10
    """Number of classes."""
    image_width: SideOrNone = 0
    """Width of the images in pixels; 0: the same as the height."""

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.in_channels, self.image_size, self.image_width or self.image_size

    def sides(self, out: Callable[[int], int], grid: int = 0) -> tuple[int, int]:
        """Sides of a map, where `out` says what convolutions leave of a side; 0: nothing.

        grid: the side that the map is averaged to; 0: as it is
        """
        _, height, width = self.image_shape
        sides = max(0, out(height)), max(0, out(width))
        if grid > min(sides) > 0:
            raise TorchcapsError(
                f"grid={grid}: the map has {sides[0]}x{sides[1]} positions; give a smaller grid, "
                "or 0 to leave the map as it is."
            )
        return (grid, grid) if grid and min(sides) else sides

    def places(self, out: Callable[[int], int], grid: int = 0) -> int:
        """Positions of a map, as `sides` has them."""
        height, width = self.sides(out, grid)
        return height * width


def described(letters: str, what: str, default: Any = None) -> Any:
    """A field of an output: its shape, what it is, and its default."""
    return field(default=default, metadata={"letters": letters, "what": what})


@dataclass
class Output:
    """Every intermediate by name; None where a model has no such thing or it was not asked for.

    >>> output = torchcaps.create_model("capsnet-small")(torch.rand(2, 1, 28, 28))
    >>> output.scores.shape, len(output.layers)
    (torch.Size([2, 10]), 2)
    """

    logits: Tensor | None = described("[B,Y]", "class scores before any softmax")
    scores: Tensor | None = described(
        "[B,Y]", "what class capsules claim: lengths, activations or shares"
    )
    features: Tensor | None = described("[B,C,H,W]", "feature maps before the capsules")
    layers: tuple[Capsules, ...] = described(
        "", "capsules of every layer, from primary to class capsules", ()
    )
    reconstruction: Tensor | None = described("[B,C,H,W]", "the image decoded from the capsules")

    def __repr__(self) -> str:
        """Shapes, not tensors."""
        values = ((f.name, getattr(self, f.name)) for f in fields(self))
        shown = (f"{name}={shapes(value)}" for name, value in values if value is not None)
        return f"{type(self).__name__}({', '.join(shown)})"

    @property
    def primary(self) -> Tensor | None:
        """Poses of the primary capsules, on their grid [B,H,W,I,D] where they have one."""
        return self.layers[0].poses if self.layers else None

    @property
    def capsules(self) -> Tensor | None:
        """Poses of the last layer [B,J,E]."""
        return self.layers[-1].poses if self.layers else None

    @property
    def decoder_input(self) -> Tensor | None:
        """Poses of the last layer as the decoder takes them."""
        return self.capsules

    @property
    def coupling(self) -> Tensor | None:
        """Share of each child of the last layer that goes to each of its parents [B,I,J]."""
        return self.layers[-1].coupling if self.layers else None


O = TypeVar("O", bound=type[Output])  # noqa: E741


def register_output(kind: O) -> O:
    """Make an output known to torch, so that models can be exported as they are."""
    kind.__repr__ = Output.__repr__  # pyright: ignore  (dataclass made one that prints tensors)
    torch.export.register_dataclass(kind, serialized_type_name=f"torchcaps.{kind.__name__}")
    return kind


register_output(Output)


@dataclass
class Bound:
    """The evidence bound of each image, term by term, and what it was computed with."""

    terms: dict[str, Tensor]
    """The bound is their sum; each [B]."""
    drawn: Tensor
    """The image without noise [B,C,H,W]."""


class Model(nn.Module):
    """Base of all models: `model(images) -> Output`.

    `encode` stops before the decoder, `decode` decodes the capsules of the last layer;
    `coupling=True` returns the routing coefficients of every layer.

    >>> model = torchcaps.create_model("capsnet-small")
    >>> model(torch.rand(2, 1, 28, 28)).logits.shape
    torch.Size([2, 10])
    """

    config: ModelConfig
    decoder: nn.Module | None
    record: dict[str, Any] | None = None
    """The measured numbers of the run that these weights come from, where known."""
    _num_features: int | None = None
    class_names: tuple[str, ...] = ()
    """Names of the classes that it was trained on, in the order of its logits, where known."""
    value_range: Range | None = None
    """Values of 16-bit and float images that become 0 and 1; None: it was trained on 8 bits."""
    temperature: float | None = None
    """Divisor of the logits that makes their softmax calibrated on validation images; None: the
    class probabilities are those of the scores."""
    coupling_sums: Literal["one", "at most one", "one over windows", "any"] = "one"
    """Sum of a child's couplings over its parents: one in each window, at most one if a child may
    have no parent, one over all windows that see it, or any if parents of one type do not compete
    with those of another."""
    grouped: bool = True
    """True if capsules that are as many as the classes are those of the classes."""

    def __init__(self):
        super().__init__()
        self.decoder = None

    @property
    def provides(self) -> frozenset[str]:
        """Outputs that metrics, figures and tasks can use: `logits`, `decode` (from capsules),
        `reconstruct` (the whole image), `ranks` (of a sparse layer), `inpaint` (masked patches),
        `bound` (of a generative model), `parts` (that templates draw), `sample` (images from
        the prior), `segments` (which points belong together), `passes` (class scores after
        each pass of its routing), `feature-decoder` (from capsules to feature maps).
        """
        if not self.config.num_classes:
            return frozenset()
        decoder = {"decode", "reconstruct"} if self.decoder is not None else set()
        return frozenset({"logits"} | decoder)

    def check_images(self, images: Tensor) -> None:
        """Raise an error if images do not have the shape that this model was built for."""
        expected = self.config.image_shape
        if tuple(images.shape[1:]) != expected:
            got = "x".join(map(str, images.shape[1:]))
            raise TorchcapsError(
                f"This {self.config.family} was made for images of "
                f"{'x'.join(map(str, expected))} (channels x height x width), and got {got}."
            )

    def encode(self, images: Tensor, *, coupling: bool = False) -> Output:
        """Everything up to the last layer of capsules. images [B,C,H,W] in [0,1]"""
        features = self.forward_features(images)
        return (
            self.forward_capsules(features, coupling)
            if self.provides
            else Output(features=features)
        )

    def forward_features(self, images: Tensor) -> Tensor:
        """Feature maps before the capsules. images [B,C,H,W] -> [B,C,H,W]"""
        features = self.encode(images).features
        if features is None:
            raise TorchcapsError(f"A {self.config.family} has no feature maps.")
        return features

    def forward_capsules(self, features: Tensor, coupling: bool = False) -> Output:
        """Capsules and class scores of feature maps [B,C,H,W]."""
        raise TorchcapsError(f"A {self.config.family} does not answer from feature maps alone.")

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits of feature maps; pre_logits: their means over positions. [B,C,H,W] -> [B,N]"""
        if pre_logits or not self.config.num_classes:
            return features.flatten(2).mean(2)
        logits = self.forward_capsules(features).logits
        if logits is None:
            raise TorchcapsError(f"A {self.config.family} like this one knows no classes.")
        return logits

    @property
    def num_features(self) -> int:
        """Channels of the feature maps."""
        if self._num_features is None:
            training = self.training
            with torch.no_grad():
                images = torch.zeros(1, *self.config.image_shape)
                features = self.eval().forward_features(images.to(next(self.parameters()).device))
            self._num_features = features.shape[1]
            self.train(training)
        return self._num_features

    def reset_classifier(self, num_classes: int) -> None:
        """Replace the class head by one for `num_classes` classes; 0: features only."""
        reset_classes(self, num_classes)

    def decode(self, poses: Tensor, labels: Tensor | None = None) -> Tensor:
        """Decode the poses of the last layer; a conditional decoder sees the labeled capsule.

        poses [B,J,E], labels [B], or [B,M] for several objects (None: the likeliest class)
        -> images [B,C,H,W], or [B,M,C,H,W]
        """
        raise TorchcapsError(f"{type(self).__name__} with this configuration has no decoder.")

    def feature_errors(self, output: Output, labels: Tensor | None = None) -> Tensor:
        """Squared errors of the standardized feature maps that the labeled capsules decode to.

        labels [B], or [B,M] (None: the likeliest class) -> [B,C,H,W]
        """
        raise TorchcapsError(f"This {self.config.family} has no decoder of features.")

    def bound(self, images: Tensor, noise: bool = True) -> Bound:
        """The evidence bound of images, at a draw of the posterior, or without noise at its means.

        images [B,C,H,W]
        """
        raise TorchcapsError(f"{type(self).__name__} is no generative model: it has no bound.")

    def forward(self, images: Tensor, *, coupling: bool = False) -> Output:
        output = self.encode(images, coupling=coupling)
        if "decode" not in self.provides or output.decoder_input is None:
            return output
        return replace(output, reconstruction=self.decode(output.decoder_input))

    def representations(self, images: Tensor) -> dict[str, Tensor]:
        """Vectors for probes, by name, the default first. images [B,C,H,W] -> vectors [B,N]"""
        output = self.encode(images)
        vectors = {}
        if output.capsules is not None:
            vectors["capsules"] = output.capsules.flatten(1)
        if output.features is not None:
            vectors["features"] = output.features.flatten(2).mean(2)
        return {**vectors, "pixels": images.flatten(1)}

    def class_vectors(self, images: Tensor, labels: Tensor) -> Tensor:
        """Poses of the capsules of classes as vectors, by which images can be compared.

        images [B,C,H,W], labels [K] -> [B,K,V]
        """
        poses = self.encode(images).capsules
        if poses is None or not self.grouped or poses.shape[1] != self.config.num_classes:
            raise TorchcapsError("It has no class capsules with poses.")
        return poses[:, labels].flatten(2)

    def trace(self, images: Tensor) -> tuple[Passes, ...]:
        """Parents and coupling of every routed layer, lowest first, after each of its passes; the
        last pass of each is the output of `encode`. Empty if no layer routes.
        """
        return trace_layers(self, images)

    def predict(
        self, images: Any, top_k: int = 5, batch_size: int = BATCH_SIZE
    ) -> list[list[Prediction]]:
        """The most likely classes of each image: `model.predict("photo.jpg")[0][0].name`.

        images: a file, a folder, a Pillow image, a list of these, a numpy array or a tensor
        [N,C,H,W], uint8 or float in [0,1]; top_k: how many classes
        """
        return predict(self, images, top_k, batch_size)

    def load_weights(self) -> str:
        """Load pretrained weights that the configuration names. -> what they are, if any"""
        return ""

    def check_weights(self) -> None:
        """Raise if a run that begins with these weights could learn nothing."""

    def begin(self, data: Dataset) -> None:
        """A run calls this once before its first update, with the data that it learns from."""

    @property
    def frozen(self) -> bool:
        """Whether training changes no feature map, so that they can be computed once."""
        return False

    def with_features(self, split: Split) -> Split:
        """A split whose images are replaced by what no training changes, computed once; for most
        models the split as it is.
        """
        return split

    @property
    def num_parameters(self) -> int:
        return sum(p.numel() for p in self.parameters())

    def save_pretrained(self, folder: str | Path) -> None:
        """Weights as safetensors, the configuration as JSON, and a model card."""
        config = {"version": CONFIG_VERSION, "family": self.config.family, **asdict(self.config)}
        config["preprocessing"] = preprocessing(*self.config.image_shape, self.value_range)
        if self.value_range:
            config["range"] = list(self.value_range)
        if self.temperature is not None:
            config["temperature"] = self.temperature
        if self.class_names:
            config["classes"] = list(self.class_names)
        write_folder(Path(folder), self, config, self.model_card())

    def model_card(self) -> str:
        config = {**asdict(self.config), "classes": ", ".join(self.class_names)}
        config["preprocessing"] = preprocessing(*self.config.image_shape, self.value_range)
        if self.temperature is not None:
            config["temperature"] = f"{self.temperature:.4g}"
        return model_card(self.config.family, config, self.num_parameters, self.record)

    def push_to_hub(self, repository: str, **options: Any) -> str:
        """Upload to a repository of the Hugging Face hub, created if it is missing. -> its URL"""
        return upload(self.save_pretrained, repository, **options)

    @classmethod
    def from_pretrained(cls, source: str | Path, **options: Any) -> "Model":
        """A saved folder or a hub id, of whatever family; options go to the download."""
        from torchcaps.models.registry import from_folder  # which builds these classes by name

        here = os.path.isdir(source)
        return from_folder(source if here else download(str(source), **options))


def mask_capsules(capsules: Tensor, labels: Tensor) -> Tensor:
    """Zero every class capsule but the labeled one (-1: all of them).

    capsules [B,J,E], labels [B] or [B,M] -> units [B,JE] or [B,M,JE]
    """
    keep = F.one_hot(labels.clamp(min=0), capsules.shape[1]) * (labels >= 0)[..., None]
    shape = (capsules.shape[0],) + (1,) * (labels.ndim - 1) + capsules.shape[1:]
    return (capsules.reshape(shape) * keep[..., None].to(capsules.dtype)).flatten(-2)
