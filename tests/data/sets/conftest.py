"""Photographs laid out as `fruits-views` wants them."""

from collections.abc import Callable

import pytest
from PIL import Image

from torchcaps.data.sets import fruits_views

FRAMES = {"train": "axis1", "val": "axis1", "half": "axis1", "axis": "axis3"}


@pytest.fixture
def fruits_root(tmp_path, monkeypatch) -> Callable:
    """Writes eight fruits with two frames a split, by a function from a fruit to its picture."""

    def write(draw: Callable[[int], Image.Image]):
        listed = {}
        for number, (split, axis) in enumerate(FRAMES.items()):
            for fruit in range(8):
                for frame in (2 * number, 2 * number + 1):
                    name = f"{axis}/fruit-{fruit}/{frame}.jpg"
                    listed.setdefault(split, []).append(name)
                    path = tmp_path / "fruits-views" / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    draw(fruit).save(path, quality=95)
        monkeypatch.setattr(fruits_views, "splits", lambda: listed)
        return tmp_path

    return write
