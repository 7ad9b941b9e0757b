"""A model as a folder: weights, configuration, card; and that folder on the Hugging Face hub.

`huggingface_hub` takes a third of a second to import, so it is imported where it is used.
"""

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from safetensors.torch import save_file
from torch import nn

from torchcaps.data.value_range import Range, as_text
from torchcaps.errors import UsageError, nearest
from torchcaps.escape import for_html

CHOSEN = {"val": "validation", "test": "test"}
"""The split that chose an epoch, in words."""


def preprocessing(channels: int, height: int, width: int, value_range: Range | None = None) -> str:
    """Preprocessing of `predict` in words: the same for every model."""
    deep = f"; 16-bit and float files: {as_text(value_range)}, clipped" if value_range else ""
    colors = {1: "grey", 3: "RGB"}.get(channels, f"{channels} channels")
    return (
        f"upright, scaled until it covers {height}x{width} (height x width), its middle, "
        f"{colors}, values from 0 to 1{deep}"
    )


def write_folder(folder: Path, model: nn.Module, config: dict[str, Any], card: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "README.md").write_text(card)


def is_hub_id(text: str) -> bool:
    """True if a text is a valid name/model of the hub."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(text)
    except HFValidationError:
        return False
    return text.count("/") == 1


def _check_id(repository: str) -> None:
    if not is_hub_id(repository):
        raise UsageError(f"{repository!r} is not a hub id: name/model.")


def upload(save: Callable[[Path], None], repository: str, **options: Any) -> str:
    from huggingface_hub import HfApi

    _check_id(repository)
    api = HfApi()
    url = api.create_repo(repository, exist_ok=True, **options)
    with TemporaryDirectory() as folder:
        save(Path(folder))
        api.upload_folder(repo_id=repository, folder_path=folder)
    return str(url)


def download(repository: str, **options: Any) -> Path:
    from huggingface_hub import snapshot_download

    _check_id(repository)
    return Path(snapshot_download(repository, **options))


def model_card(
    family: str, config: dict[str, Any], parameters: int, record: dict[str, Any] | None
) -> str:
    """A card with the numbers that the run measured, and nothing that it did not."""
    lines = [
        "---", "library_name: torchcaps", "license: apache-2.0", "tags: [capsules]", "---",
        f"# {family}",
        f"{parameters:,} parameters. Load it with `torchcaps.load(\"<this repository>\")`.",
        "## Configuration", "| field | value |", "| --- | --- |",
        *(f"| {name} | {for_html(str(value))} |" for name, value in config.items()),
    ]  # fmt: skip
    if record:
        lines += ["## Measured", "| data | split | metric | value |", "| --- | --- | --- | --- |"]
        lines += [
            f"| {for_html(r['data'])} | {r['split']} | {for_html(r['metric'])} | {r['value']:.4f} |"
            for r in record["results"]
        ]
        recipe = record["recipe"]
        lines += [
            f"\nRecipe `{for_html(recipe['name'])}`, seed {recipe['seed']}, "
            f"commit `{record['commit']}`, {record['device']}, {record['date']}. "
            f"The checkpoint was chosen on {CHOSEN[recipe.get('stop_on', 'val')]} data."
        ]
    return "\n".join(lines) + "\n"


WEIGHTS = Path(__file__).parents[1] / "weights"
"""Weights that come with torchcaps: a folder ARCHITECTURE.TAG each, in half precision."""


def pretrained_names() -> list[str]:
    """Models whose weights come with torchcaps, as ARCHITECTURE.TAG."""
    return sorted(p.parent.name for p in WEIGHTS.glob("*/model.safetensors"))


def pretrained_folder(name: str) -> Path:
    """The folder of a model's weights; without a tag, of the first of its tags."""
    names = pretrained_names()
    for known in names:
        if name in (known, known.partition(".")[0]):
            return WEIGHTS / known
    hint = nearest(name, names, most=12)
    raise UsageError(f"No weights for {name!r} come with torchcaps. {hint}")
