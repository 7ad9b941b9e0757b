"""Imagenette and Imagewoof: ten easy and ten hard classes of ImageNet, as image folders."""

from pathlib import Path

from torchcaps.data.dataset import Dataset
from torchcaps.data.registry import register
from torchcaps.data.sets.folder import load_folder
from torchcaps.data.source import Remote, fetch

_HOST = "https://s3.amazonaws.com/fast-ai-imageclas"
IMAGENETTE = (
    Remote(
        "imagenette2-320.tgz",
        "5020a9130cea0348272823cb12d2db7e981c6f2afa3dce71ccd5b8013005c55e",
        (f"{_HOST}/imagenette2-320.tgz",),
        unpack_to="imagenette2-320",
    ),
)
IMAGEWOOF = (
    Remote(
        "imagewoof2-320.tgz",
        "4e4905ed7643120daaf9bf3b2ef7f3a7e8396d9bdaf254a38c6f01f618b4973d",
        (f"{_HOST}/imagewoof2-320.tgz",),
        unpack_to="imagewoof2-320",
    ),
)


def _load(name: str, root: Path, seed: int, size: int, remotes: tuple[Remote, ...]) -> Dataset:
    """Load the smallest copy under the root with images of at least `size`, else the largest."""

    def side(path: Path) -> int:
        return int(path.name.rpartition("-")[2]) if "-" in path.name else 10_000

    def copies() -> list[Path]:
        return sorted((p for p in root.glob(f"{name}2*") if (p / "train").is_dir()), key=side)

    if not copies():
        fetch(name, root, remotes)
    paths = copies()
    chosen = next((p for p in paths if side(p) >= size), paths[-1])
    note = "" if side(chosen) > 64 else "resized copies, not the original archives"
    return load_folder(name, chosen, seed=seed, size=size, mode="RGB", note=note)


@register("imagenette", "13,394 photographs in ten easy classes, 64x64x3 (or size=)", IMAGENETTE)
def imagenette(root: Path, *, seed: int, size: int = 64) -> Dataset:
    return _load("imagenette", root, seed, size, IMAGENETTE)


@register("imagewoof", "12,954 photographs of ten dog breeds, 64x64x3 (or size=)", IMAGEWOOF)
def imagewoof(root: Path, *, seed: int, size: int = 64) -> Dataset:
    return _load("imagewoof", root, seed, size, IMAGEWOOF)
