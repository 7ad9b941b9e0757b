"""The user's own images: `folder:PATH`, any mix of sizes and modes, labelled or not."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchcaps.data.dataset import Dataset, Split, hold_out, with_validation
from torchcaps.data.registry import register
from torchcaps.errors import TorchcapsError

_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
_VALIDATION = ("val", "valid", "validation")
_SPLITS = ("train", "test", *_VALIDATION)


def read_image(path: Path, size: int, mode: str) -> Tensor:
    """One file as uint8 [C,size,size]: upright as its EXIF says, shorter side to `size`,
    antialiased, then the centre.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            image = _flatten(ImageOps.exif_transpose(image), mode)
            scale = size / min(image.size)
            width, height = (max(size, round(side * scale)) for side in image.size)
            image = image.resize((width, height), Image.Resampling.LANCZOS, reducing_gap=3.0)
            left, top = (width - size) // 2, (height - size) // 2
            pixels = np.asarray(image.crop((left, top, left + size, top + size)))
    except Exception as error:  # a broken image file makes Pillow raise many kinds
        raise TorchcapsError(f"{path}: not an image ({type(error).__name__}: {error}).") from None
    return torch.from_numpy(pixels.copy()).reshape(size, size, -1).permute(2, 0, 1).contiguous()


def _flatten(image, mode: str):
    """Any mode to L or RGB: transparency over black, 16-bit greys scaled, not cut off."""
    from PIL import Image

    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image, np.float64)
        top = 65535 if image.mode.startswith("I;16") or values.max() > 255 else 255
        grey = (values / top).clip(0, 1) * 255
        image = Image.fromarray(grey.round().astype(np.uint8))
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        black = Image.new("RGBA", image.size, (0, 0, 0, 255))
        black.alpha_composite(image)
        image = black
    return image.convert(mode)


def list_images(folder: Path) -> list[Path]:
    """Images in a folder and below it, but for files and folders whose names begin with a dot."""
    found = (p for p in folder.rglob("*") if p.suffix.lower() in _SUFFIXES and p.is_file())
    return sorted(p for p in found if not _hidden(p.relative_to(folder)))


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def read_tree(
    folder: Path, size: int, mode: str, classes: tuple[str, ...] | None = None
) -> tuple[Split, tuple[str, ...]]:
    """A folder of class folders, or of images alone (label -1) -> split and class names."""
    inside = (p for p in folder.iterdir() if p.is_dir() and not _hidden(Path(p.name)))
    found = tuple(sorted(p.name for p in inside if list_images(p)))
    if classes is not None and (unknown := set(found) - set(classes)):
        raise TorchcapsError(
            f"{folder}: class folders {sorted(unknown)} are not in the train tree."
        )
    classes = classes if classes is not None else found
    paths, labels = [], []
    for label, name in enumerate(classes):
        inside = list_images(folder / name) if (folder / name).is_dir() else []
        paths += inside
        labels += [label] * len(inside)
    loose = [p for p in list_images(folder) if p.parent == folder]
    paths += loose
    labels += [-1] * len(loose)
    if not paths:
        raise TorchcapsError(f"{folder}: no images ({', '.join(sorted(_SUFFIXES))}) in it.")
    with ThreadPoolExecutor() as pool:  # Pillow decodes outside the interpreter's lock
        images = list(pool.map(lambda p: read_image(p, size, mode), paths))
    return Split(torch.stack(images), torch.tensor(labels)), classes


def load_folder(
    name: str, folder: Path, *, seed: int, size: int, mode: str, note: str = ""
) -> Dataset:
    """train/val/test subfolders where there are any (val alone is the test split), or one tree."""
    if mode not in ("L", "RGB"):
        raise TorchcapsError(f"mode={mode!r}: give L (grey) or RGB.")
    if size < 1:
        raise TorchcapsError(f"size={size}: give the side of the images in pixels.")
    if not folder.is_dir():
        raise TorchcapsError(f"{folder}: no such folder.")
    inside = (p for p in folder.iterdir() if p.is_dir() and not _hidden(Path(p.name)))
    parts = {p.name.lower(): p for p in inside}
    if "train" not in parts or set(parts) - set(_SPLITS):
        whole, classes = read_tree(folder, size, mode)
        kept, held = hold_out(whole.labels, 0.1, seed)
        if not len(held):
            raise TorchcapsError(
                f"{folder}: too few images to split ({len(whole)}); ten a class will do."
            )
        return with_validation(name, whole[kept], whole[held], classes, seed=seed + 1, note=note)
    train, classes = read_tree(parts["train"], size, mode)
    val = next((parts[n] for n in _VALIDATION if n in parts), None)
    if "test" in parts:
        test, _ = read_tree(parts["test"], size, mode, classes)
    elif val is not None:
        (test, _), val = read_tree(val, size, mode, classes), None
    else:
        kept, held = hold_out(train.labels, 0.1, seed)
        train, test = train[kept], train[held]
    if val is None:
        return with_validation(name, train, test, classes, seed=seed, note=note)
    return Dataset(name, train, read_tree(val, size, mode, classes)[0], test, classes, note)


@register("folder", "your own images: folder:PATH[,size=64][,mode=RGB]")
def folder(root: Path, path: str, *, seed: int, size: int = 64, mode: str = "RGB") -> Dataset:
    """Class subfolders, with or without train/val/test above them; loose images are unlabelled."""
    del root
    return load_folder(f"folder:{path}", Path(path).expanduser(), seed=seed, size=size, mode=mode)
