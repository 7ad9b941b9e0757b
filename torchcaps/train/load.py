"""`torchcaps.load`: a trained model from a run folder, a saved folder or the hub."""

from pathlib import Path

from torchcaps.data import Dataset
from torchcaps.data import load as load_data
from torchcaps.data.dataset import hold_fewer, keep_per_class
from torchcaps.errors import TorchcapsError
from torchcaps.models import CapsuleModel, from_folder
from torchcaps.train.recipe import DataSpec
from torchcaps.train.run import Run


def data_of(spec: DataSpec, root: Path | None = None) -> Dataset:
    """What a recipe trains on, split as it says; from `root`, or the folder that it names."""
    data = load_data(spec.name, root or spec.root or None, seed=spec.seed)
    data = hold_fewer(data, spec.held_out) if spec.held_out else data
    return keep_per_class(data, spec.per_class, spec.seed) if spec.per_class else data


def load(source: str | Path) -> CapsuleModel:
    """A run folder, a folder that `save_pretrained` wrote, or a hub id such as "name/capsnet"."""
    folder = Path(source)
    if (folder / "recipe.json").exists():
        run = Run.open(folder)
        record = run.record()
        model = from_folder(run.model)
        model.record = record
        return model.eval()
    if (folder / "config.json").exists():
        return from_folder(folder).eval()
    if folder.exists() or str(source).count("/") != 1:
        raise TorchcapsError(
            f"{source}: neither a run, nor a saved model, nor a hub id (name/model)."
        )
    try:
        return CapsuleModel.from_pretrained(str(source)).eval()
    except OSError as error:
        raise TorchcapsError(
            f"{source}: not here, and the hub gave {type(error).__name__}."
        ) from None
