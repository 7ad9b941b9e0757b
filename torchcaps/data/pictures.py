"""Picture files as uint8 tensors: any mode and size, upright, all bad files named at once."""

import os
import sys
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from threading import Lock
from typing import IO

import numpy as np
import torch
from torch import Tensor

from torchcaps.errors import TorchcapsError

SUFFIXES = {
    ".png", ".jpg", ".jpeg", ".jfif", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm",
    ".avif", ".heic", ".heif",
}  # fmt: skip
"""What is taken for a picture; one that Pillow cannot read is named, not passed over."""
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""What Pillow may take a file for, whatever its name; AVIF where this Pillow knows that too."""
THINNEST = 50
"""A picture may be so many times as long as it is wide."""
LARGEST = 89_000_000
"""Pixels of the largest picture that is read; Pillow warns from there on."""
ALONE = 32_000_000
"""Pixels from which on a picture is decoded while no other such one is: each takes a gigabyte."""
NAMED = 10
"""Bad files that an error names; it counts the others."""
Size = tuple[int, int]
"""Height and width in pixels."""
_alone = Lock()


def as_size(text: int | str) -> Size:
    """'64' -> (64, 64); '48x64' -> height 48, width 64"""
    parts = str(text).lower().split("x")
    if len(parts) > 2 or not all(p.isdecimal() and int(p) for p in parts):
        raise TorchcapsError(f"size={text}: give pixels, as 64, or as 48x64 for height and width.")
    height, width = int(parts[0]), int(parts[-1])
    return height, width


def list_images(folder: Path) -> list[Path]:
    """Images in a folder and below it, but for files and folders whose names begin with a dot."""
    found: list[Path] = []
    been: set[str] = set()
    for place, inside, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        if real in been:  # a link that leads back
            inside.clear()
            continue
        been.add(real)
        inside[:] = [name for name in inside if not name.startswith(".")]
        suited = (n for n in files if not n.startswith(".") and Path(n).suffix.lower() in SUFFIXES)
        found += [Path(place, name) for name in suited]
    return sorted(p for p in found if p.is_file())


def read_image(
    path: Path | IO[bytes], size: int | Size, mode: str, most_pixels: int = LARGEST
) -> Tensor:
    """One file as uint8 [C,H,W]: upright as its EXIF says, scaled to cover the size, antialiased,
    then the centre. most_pixels: a picture of more is refused before it is decoded
    """
    from PIL import Image, ImageOps, features

    formats = (*FORMATS, "AVIF") if features.check("avif") else FORMATS
    rows, columns = (size, size) if isinstance(size, int) else size
    try:
        with Image.open(path, formats=formats) as image:
            if max(image.size) > THINNEST * min(image.size):
                raise ValueError(f"{image.width}x{image.height} is too thin")
            pixels = image.width * image.height
            if pixels > most_pixels:
                million = most_pixels // 10**6
                raise ValueError(
                    f"{image.width}x{image.height} is too large: at most {million} million pixels"
                )
            with _alone if pixels > ALONE else nullcontext():
                ImageOps.exif_transpose(image, in_place=True)
                image = _flatten(image, mode)
                scale = max(columns / image.width, rows / image.height)
                width = max(columns, round(image.width * scale))
                height = max(rows, round(image.height * scale))
                image = image.resize((width, height), Image.Resampling.LANCZOS, reducing_gap=3.0)
            left, top = (width - columns) // 2, (height - rows) // 2
            taken = np.asarray(image.crop((left, top, left + columns, top + rows)))
    except Exception as error:  # a broken image file makes Pillow raise many kinds
        name = path if isinstance(path, Path) else "This"
        raise TorchcapsError(f"{name}: not an image ({_reason(error, path)}).") from None
    return torch.from_numpy(taken.copy()).reshape(rows, columns, -1).permute(2, 0, 1).contiguous()


def _reason(error: Exception, path: Path | IO[bytes]) -> str:
    shown = repr(str(path)) if isinstance(path, Path) else repr(path)
    text = str(error).replace(shown, "").strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


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
    return image if image.mode == mode else image.convert(mode)


def read_images(
    paths: Sequence[Path], size: Size, mode: str, skip_broken: bool = False
) -> tuple[Tensor, list[int]]:
    """Files as uint8 [N,C,H,W], and which of them these are: all, or those that are whole."""
    from PIL import Image

    _fits(len(paths), size, mode)
    # Pillow decodes outside the interpreter's lock; what it warns of is refused
    with ThreadPoolExecutor() as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        read = list(_shown(pool.map(lambda p: _tried(p, size, mode), paths), len(paths)))
    bad = [str(r) for r in read if isinstance(r, TorchcapsError)]
    if bad and (not skip_broken or len(bad) == len(read)):
        raise TorchcapsError(_named(bad, len(read)))
    whole = [n for n, r in enumerate(read) if isinstance(r, Tensor)]
    return torch.stack([r for r in read if isinstance(r, Tensor)]), whole


def _tried(path: Path, size: Size, mode: str) -> Tensor | TorchcapsError:
    try:
        return read_image(path, size, mode)
    except TorchcapsError as error:
        return error


def _named(bad: list[str], count: int) -> str:
    if len(bad) == 1 == count:
        return bad[0]
    more = f" And {len(bad) - NAMED} more." if len(bad) > NAMED else ""
    how = "; skip_broken=true leaves such files out" if len(bad) < count else ""
    return f"{len(bad)} of {count} files cannot be read{how}. {' '.join(bad[:NAMED])}{more}"


def _fits(count: int, size: Size, mode: str) -> None:
    """Images are held in memory, all of them; say so before it is taken."""
    wanted = count * size[0] * size[1] * (3 if mode == "RGB" else 1)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if wanted > 0.7 * memory:
        raise TorchcapsError(
            f"{count:,} images of {size[0]}x{size[1]} need {wanted / 1e9:.0f} GB, and this machine "
            f"has {memory / 1e9:.0f}: give a smaller size=."
        )


def _shown(read: Iterable, count: int) -> Iterable:
    """With a progress bar, where there are many and somebody looks."""
    if count < 200 or not sys.stderr.isatty():
        return read
    from rich.console import Console
    from rich.progress import track

    return track(read, "read", count, console=Console(stderr=True), transient=True)
