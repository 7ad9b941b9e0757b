"""Store a finished run of a recipe `zoo/NAME` as bundled weights, in half precision.

python scripts/bundle_weights.py RUN …
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from torchcaps.errors import TorchcapsError
from torchcaps.models.base import SIZES, ModelConfig
from torchcaps.models.hub import WEIGHTS
from torchcaps.models.registry import MODELS
from torchcaps.training.run import Run

KEPT = (
    "recipe", "results", "command", "commit", "date", "device", "versions", "seconds", "run",
    "parameters", "modified", "epochs_trained", "chosen_epoch",
)  # fmt: skip
"""What is kept of the run's record: not where the run stood on somebody's disk."""


def sized(config: ModelConfig) -> ModelConfig:
    """The configuration with the usual sizes of its name, which the data had replaced."""
    for entry in MODELS.values():
        if type(entry.config) is type(config):
            sizes = {name: getattr(entry.config, name) for name in SIZES}
            if replace(config, **sizes) == entry.config:
                return entry.config
    return config


def keep(folder: Path) -> Path:
    run = Run.open(folder)
    record = run.record()
    name = record["recipe"]["name"]
    if not name.startswith("zoo/"):
        raise TorchcapsError(f"{folder} is a run of {name}, not of a recipe zoo/NAME.")
    model = next(n for n, entry in MODELS.items() if entry.config == sized(run.recipe().model))
    out = WEIGHTS / f"{model}.digits"
    out.mkdir(parents=True, exist_ok=True)
    weights = load_file(run.model_folder / "model.safetensors")
    halves = {n: t.half() if t.dtype == torch.float32 else t for n, t in weights.items()}
    save_file(halves, out / "model.safetensors", {"format": "pt"})
    (out / "config.json").write_text((run.model_folder / "config.json").read_text())
    kept = {key: record[key] for key in KEPT if key in record}
    kept["command"] = f"torchcaps train {name}"
    (out / "record.json").write_text(json.dumps(kept, indent=1) + "\n")
    return out


if __name__ == "__main__":
    for given in sys.argv[1:]:
        print(keep(Path(given)))
