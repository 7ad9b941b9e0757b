"""Image files as uint8 tensors: any mode and size, EXIF orientation, one error for bad files."""

import os
import sys
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from threading import Lock
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from torchcaps.errors import TorchcapsError

SUFFIXES = {
    ".png", ".jpg", ".jpeg", ".jfif", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm",
    ".avif", ".heic", ".heif",
}  # fmt: skip
"""Suffixes of image files; a file that Pillow cannot read is an error."""
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""Formats that Pillow may decode, whatever the suffix; plus AVIF if Pillow supports it."""
MAX_ASPECT = 50
"""Largest ratio of the sides of an image."""
MAX_PIXELS = 89_000_000
"""Largest image, in pixels; Pillow warns above this size."""
ALONE_PIXELS = 32_000_000
"""Larger images are decoded one at a time: each needs a gigabyte."""
MAX_NAMED = 10
"""Bad files that an error names; it counts the others."""
Size = tuple[int, int]
"""Height and width in pixels."""
_decode_alone = Lock()


def as_size(text: int | str) -> Size:
    """'64' -> (64, 64); '48x64' -> height 48, width 64"""
    sides = str(text).lower().split("x")
    if len(sides) > 2 or not all(side.isdecimal() and int(side) for side in sides):
        raise TorchcapsError(f"size={text}: give pixels, like 64, or 48x64 for height and width.")
    return int(sides[0]), int(sides[-1])


def list_images(folder: Path) -> list[Path]:
    """List the images in a folder and its subfolders; skip names that start with a dot."""
    paths: list[Path] = []
    visited: set[str] = set()
    for parent, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(parent)
        if real in visited:  # a link to a parent folder
            folders.clear()
            continue
        visited.add(real)
        folders[:] = [name for name in folders if not name.startswith(".")]
        names = (n for n in files if not n.startswith(".") and Path(n).suffix.lower() in SUFFIXES)
        paths += [Path(parent, name) for name in names]
    return sorted(p for p in paths if p.is_file())


def read_image(
    path: Path | IO[bytes], size: int | Size, mode: str, most_pixels: int = MAX_PIXELS
) -> Tensor:
    """Read an image as uint8 [C,H,W]: rotate by its EXIF orientation, resize with antialiasing to
    cover the size, crop the center. most_pixels: larger images raise before they are decoded
    """
    from PIL import Image, ImageOps, features

    formats = (*FORMATS, "AVIF") if features.check("avif") else FORMATS
    rows, columns = (size, size) if isinstance(size, int) else size
    try:
        with Image.open(path, formats=formats) as image:
            if max(image.size) > MAX_ASPECT * min(image.size):
                raise ValueError(f"{image.width}x{image.height} is too thin")
            pixels = image.width * image.height
            if pixels > most_pixels:
                million = most_pixels // 10**6
                raise ValueError(
                    f"{image.width}x{image.height} is too large: at most {million} million pixels"
                )
            with _decode_alone if pixels > ALONE_PIXELS else nullcontext():
                ImageOps.exif_transpose(image, in_place=True)
                image = _flatten(image, mode)
                array = cover(image, rows, columns)
    except Exception as error:  # a broken image file makes Pillow raise many kinds
        name = path if isinstance(path, Path) else "This"
        raise TorchcapsError(f"{name}: not an image ({_reason(error, path)}).") from None
    return torch.from_numpy(array.copy()).reshape(rows, columns, -1).permute(2, 0, 1).contiguous()


def cover(image: Any, rows: int, columns: int) -> np.ndarray:
    """A Pillow image, resized with antialiasing to cover a size; the center. -> [H,W] or [H,W,C]"""
    from PIL import Image

    scale = max(columns / image.width, rows / image.height)
    width = max(columns, round(image.width * scale))
    height = max(rows, round(image.height * scale))
    image = image.resize((width, height), Image.Resampling.LANCZOS, reducing_gap=3.0)
    left, top = (width - columns) // 2, (height - rows) // 2
    return np.asarray(image.crop((left, top, left + columns, top + rows)))


def _reason(error: Exception, path: Path | IO[bytes]) -> str:
    quoted = repr(str(path)) if isinstance(path, Path) else repr(path)
    text = str(error).replace(quoted, "").strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _flatten(image, mode: str):
    """Convert any mode to L or RGB: transparency over black, 16-bit gray scaled to 8 bits."""
    from PIL import Image

    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image, np.float64)
        top = 65535 if image.mode.startswith("I;16") or values.max() > 255 else 255
        gray = (values / top).clip(0, 1) * 255
        image = Image.fromarray(gray.round().astype(np.uint8))
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        black = Image.new("RGBA", image.size, (0, 0, 0, 255))
        black.alpha_composite(image)
        image = black
    return image if image.mode == mode else image.convert(mode)


def read_images(
    paths: Sequence[Path], size: Size, mode: str, skip_broken: bool = False
) -> tuple[Tensor, list[int]]:
    """Read files as uint8 [N,C,H,W]; also returns the indices of the files that were read."""
    from PIL import Image

    _check_memory(len(paths), size, mode)
    # Pillow decodes without the GIL; `read_image` refuses the sizes that Pillow warns about
    with ThreadPoolExecutor() as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        results = list(_progress(pool.map(lambda p: _try(p, size, mode), paths), len(paths)))
    bad = [str(r) for r in results if isinstance(r, TorchcapsError)]
    if bad and (not skip_broken or len(bad) == len(results)):
        raise TorchcapsError(_message(bad, len(results)))
    images = {n: r for n, r in enumerate(results) if isinstance(r, Tensor)}
    return torch.stack(list(images.values())), list(images)


def _try(path: Path, size: Size, mode: str) -> Tensor | TorchcapsError:
    try:
        return read_image(path, size, mode)
    except TorchcapsError as error:
        return error


def _message(bad: list[str], count: int) -> str:
    if len(bad) == 1 == count:
        return bad[0]
    more = f" And {len(bad) - MAX_NAMED} more." if len(bad) > MAX_NAMED else ""
    hint = "; skip_broken=true skips such files" if len(bad) < count else ""
    return f"{len(bad)} of {count} files cannot be read{hint}. {' '.join(bad[:MAX_NAMED])}{more}"


def _check_memory(count: int, size: Size, mode: str) -> None:
    """Raise if the images do not fit into memory."""
    needed = count * size[0] * size[1] * (3 if mode == "RGB" else 1)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > 0.7 * memory:
        raise TorchcapsError(
            f"{count:,} images of {size[0]}x{size[1]} need {needed / 1e9:.0f} GB, this machine "
            f"has {memory / 1e9:.0f}: give a smaller size=."
        )


def _progress(results: Iterable, count: int) -> Iterable:
    """Show a progress bar for many files on a terminal."""
    if count < 200 or not sys.stderr.isatty():
        return results
    from rich.console import Console
    from rich.progress import track

    return track(results, "read", count, console=Console(stderr=True), transient=True)
