"""A finished run of a recipe `zoo/NAME` into `torchcaps/zoo/NAME`, its weights in half precision.

python -m torchcaps.cli.keep RUN …
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from torchcaps.errors import TorchcapsError
from torchcaps.models.zoo import FOLDER
from torchcaps.train.run import Run

KEPT = (
    "recipe", "results", "command", "commit", "date", "device", "versions", "seconds", "run",
    "parameters", "modified", "epochs_trained", "chosen_epoch",
)  # fmt: skip
"""What is kept of the run's record: not where the run stood on somebody's disk."""


def keep(folder: Path) -> Path:
    run = Run.open(folder)
    record = run.record()
    name = record["recipe"]["name"]
    if not name.startswith("zoo/"):
        raise TorchcapsError(f"{folder} is a run of {name}, not of a recipe zoo/NAME.")
    out = FOLDER / name.removeprefix("zoo/")
    out.mkdir(parents=True, exist_ok=True)
    weights = load_file(run.model / "model.safetensors")
    halves = {n: t.half() if t.dtype == torch.float32 else t for n, t in weights.items()}
    save_file(halves, out / "model.safetensors", {"format": "pt"})
    (out / "config.json").write_text((run.model / "config.json").read_text())
    kept = {key: record[key] for key in KEPT if key in record}
    kept["command"] = f"torchcaps train {name}"
    (out / "record.json").write_text(json.dumps(kept, indent=1) + "\n")
    return out


if __name__ == "__main__":
    for given in sys.argv[1:]:
        print(keep(Path(given)))
