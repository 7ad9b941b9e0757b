"""Image files as uint8 tensors: any mode and size, EXIF orientation, one error for bad files."""

import os
import sys
import warnings
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from threading import Lock
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchcaps.data.value_range import (
    Range,
    Values,
    default_range,
    exceeds,
    full_range,
    to_bytes,
)
from torchcaps.errors import TorchcapsError, TorchcapsWarning, some_of

SUFFIXES = {
    ".png", ".jpg", ".jpeg", ".jfif", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm",
    ".avif", ".heic", ".heif",
}  # fmt: skip
"""Suffixes of image files; a file that Pillow cannot read is an error."""
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""Formats that Pillow may decode, whatever the suffix; plus AVIF if Pillow supports it."""
SHALLOW = {".jpg", ".jpeg", ".jfif", ".bmp", ".gif", ".webp", ".avif", ".heic", ".heif"}
"""Suffixes of files whose pixels have at most 8 bits."""
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


def list_images(folder: Path, follow_links: bool = False) -> list[Path]:
    """List the images in a folder and its subfolders; skip names that start with a dot.

    follow_links: also symbolic links that leave the folder
    """
    root = Path(os.path.realpath(folder))
    paths: list[Path] = []
    visited: set[str] = set()
    left_out: list[str] = []

    def stays(path: str) -> bool:
        inside = not os.path.islink(path) or Path(os.path.realpath(path)).is_relative_to(root)
        if not inside and not follow_links:
            left_out.append(os.path.relpath(path, folder))
        return inside or follow_links

    for parent, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(parent)
        if real in visited:  # a link to a parent folder
            folders.clear()
            continue
        visited.add(real)
        folders[:] = [
            n for n in folders if not n.startswith(".") and stays(os.path.join(parent, n))
        ]
        names = (n for n in files if not n.startswith(".") and Path(n).suffix.lower() in SUFFIXES)
        paths += [Path(parent, n) for n in names if stays(os.path.join(parent, n))]
    if left_out:
        warnings.warn(
            f"{folder}: skipping symbolic links that leave the folder: "
            f"{some_of(sorted(left_out))}. Name the files, or follow the links: "
            f"folder:{folder},follow_links=true.",
            TorchcapsWarning,
            stacklevel=2,
        )
    return sorted(p for p in paths if p.is_file())


class Picture(NamedTuple):
    """An image file: its pixels, and its values if it has more than 8 bits."""

    pixels: Tensor | None
    """uint8 [C,H,W]; None if its range is not known yet."""
    values: Values | None
    coarse: bool = False
    """A color image of 16 bits, of which Pillow reads the upper 8."""


def read_image(
    path: Path | IO[bytes],
    size: int | Size,
    mode: str,
    most_pixels: int = MAX_PIXELS,
    value_range: Range | None = None,
) -> Tensor:
    """Read an image as uint8 [C,H,W]: rotate by its EXIF orientation, resize with antialiasing to
    cover the size, crop the center. most_pixels: larger images raise before they are decoded;
    value_range: of images with more than 8 bits; None: 0..65535, or 0..1 for floats
    """
    pixels = read_picture(path, size, mode, value_range, most_pixels).pixels
    assert pixels is not None
    return pixels


def read_picture(
    path: Path | IO[bytes],
    size: int | Size,
    mode: str,
    value_range: Range | None = None,
    most_pixels: int = MAX_PIXELS,
    undecided: bool = False,
) -> Picture:
    """Read an image as `read_image` does, with what is known of its values.

    undecided: of an image with more than 8 bits, only the values
    """
    from PIL import Image, ImageOps, features

    formats = (*FORMATS, "AVIF") if features.check("avif") else FORMATS
    rows, columns = (size, size) if isinstance(size, int) else size
    name = path if isinstance(path, Path) else "This"
    try:
        with Image.open(path, formats=formats) as image:
            if max(image.size) > MAX_ASPECT * min(image.size):
                raise ValueError(f"{image.width}x{image.height} is too thin")
            coarse = not is_deep(image) and any(";16" in str(tile[3]) for tile in image.tile)
            pixels = image.width * image.height
            if pixels > most_pixels:
                million = most_pixels // 10**6
                raise ValueError(
                    f"{image.width}x{image.height} is too large: at most {million} million pixels"
                )
            with _decode_alone if pixels > ALONE_PIXELS else nullcontext():
                ImageOps.exif_transpose(image, in_place=True)
                values = _values(image)
                if values is not None:
                    if undecided:
                        return Picture(None, values)
                    value_range = value_range or full_range(values, str(name))
                    image = Image.fromarray(to_bytes(np.asarray(image), value_range))
                image = _flatten(image, mode)
                array = cover(image, rows, columns)
    except TorchcapsError:
        raise
    except Exception as error:  # a broken image file makes Pillow raise many kinds
        raise TorchcapsError(f"{name}: not an image ({_reason(error, path)}).") from None
    tensor = torch.from_numpy(array.copy()).reshape(rows, columns, -1).permute(2, 0, 1)
    return Picture(tensor.contiguous(), values, coarse)


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


def _values(image) -> Values | None:
    """The values of a gray image with more than 8 bits; None for other images."""
    if not is_deep(image):
        return None
    values = Values.of(np.asarray(image))
    if not np.isfinite(values.low + values.high):
        raise ValueError("some values are not finite")
    return values


def values_of(paths: Sequence[Path]) -> list[Values]:
    """The values of those image files that have more than 8 bits."""
    from PIL import Image

    def values(path: Path) -> Values | None:
        try:
            with Image.open(path, formats=FORMATS) as image:
                return _values(image)
        except Exception:  # a broken file is an error where it is decoded
            return None

    deep = [p for p in paths if p.suffix.lower() not in SHALLOW]
    with ThreadPoolExecutor() as pool:
        return [v for v in _progress(pool.map(values, deep), len(deep)) if v is not None]


def is_deep(image) -> bool:
    """True if a Pillow image has more than 8 bits. (Pillow reads colors of 16 bits as 8 bits.)"""
    return image.mode.startswith("I") or image.mode == "F"


def _flatten(image, mode: str):
    """Convert any mode of 8 bits to L or RGB: transparency over black."""
    from PIL import Image

    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        black = Image.new("RGBA", image.size, (0, 0, 0, 255))
        black.alpha_composite(image)
        image = black
    return image if image.mode == mode else image.convert(mode)


class Pictures(NamedTuple):
    """Images of files."""

    images: Tensor
    """uint8 [N,C,H,W]"""
    rows: list[int]
    """The numbers of the files that were read."""
    value_range: Range | None
    """The range of those with more than 8 bits; None without such images or a decision."""
    deep: int
    """Number of images with more than 8 bits."""
    clipped: int
    """Number of images with values outside the range."""
    coarse: int
    """Number of color images of 16 bits, of which Pillow reads the upper 8."""


def read_images(
    paths: Sequence[Path],
    size: Size,
    mode: str,
    skip_broken: bool = False,
    value_range: Range | None = None,
    fit: Collection[int] = (),
) -> Pictures:
    """Read files as images of one size.

    value_range: of images with more than 8 bits; fit: numbers of the files that decide it otherwise
    """
    _check_memory(len(paths), size, mode)
    undecided = value_range is None and bool(fit)
    results = _read_all(paths, size, mode, value_range, undecided)
    deep = {n: r.values for n, r in results.items() if isinstance(r, Picture) and r.values}
    if undecided and deep:
        decisive = [values for n, values in deep.items() if n in fit]
        parent = os.path.commonpath([path.parent for path in paths])
        value_range = default_range(decisive, parent) if decisive else None
        results |= _read_all({n: paths[n] for n in deep}, size, mode, value_range)
    bad = [str(r) for r in results.values() if isinstance(r, TorchcapsError)]
    if bad and (not skip_broken or len(bad) == len(results)):
        raise TorchcapsError(_message(bad, len(results)))
    pictures = {n: r for n, r in results.items() if isinstance(r, Picture)}
    return Pictures(
        torch.stack([p.pixels for p in pictures.values() if p.pixels is not None]),
        list(pictures),
        value_range if deep else None,
        len(deep),
        sum(exceeds(v, value_range) for v in deep.values()) if value_range else 0,
        sum(p.coarse for p in pictures.values()),
    )


def _read_all(
    paths: Sequence[Path] | dict[int, Path],
    size: Size,
    mode: str,
    value_range: Range | None,
    undecided: bool = False,
) -> dict[int, Picture | TorchcapsError]:
    """Read files in threads. -> by the number of the file"""
    from PIL import Image

    numbered = paths if isinstance(paths, dict) else dict(enumerate(paths))

    def attempt(path: Path) -> Picture | TorchcapsError:
        try:
            return read_picture(path, size, mode, value_range, undecided=undecided)
        except TorchcapsError as error:
            return error

    # Pillow decodes without the GIL; `read_picture` refuses the sizes that Pillow warns about
    with ThreadPoolExecutor() as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        results = _progress(pool.map(attempt, numbered.values()), len(numbered))
        return dict(zip(numbered, results, strict=True))


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
    from rich.progress import track

    from torchcaps.escape import Console

    return track(results, "read", count, console=Console(stderr=True), transient=True)
