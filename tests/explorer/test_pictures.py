"""The README's images of the explorer: one digit, upright and rotating.

`TORCHCAPS_PICTURES=docs/images python -m pytest tests/explorer/test_pictures.py` writes them.
"""

import io
import os
from pathlib import Path

from PIL import Image

from tests.explorer.test_page import opened, wait_until

OUT = os.environ.get("TORCHCAPS_PICTURES", "")
HASH = "#v=1&a=capsnet-small.digits&b=convnet-avg-small.digits&i=157"
SIZE = {"width": 1180, "height": 760}


def shot(page, turn):
    """Screenshot after both models have answered at this angle."""
    slider = page.locator("#s-rot")
    slider.evaluate(f"s => {{ s.value = {turn}; s.dispatchEvent(new Event('input')); }}")
    expected = f"Rotated by {turn}°" if turn else ""
    wait_until(page, lambda: page.inner_text("#verdict").startswith(expected), f"at {turn}")
    page.wait_for_timeout(500 if OUT else 50)  # panels that wait for a rest
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def test_the_page_as_the_readme_shows_it(browser, served, tmp_path):
    folder = Path(OUT or tmp_path)
    turns = range(-96, 97, 8) if OUT else (-32, 0, 32)
    with opened(browser, served, HASH, SIZE) as page:
        frames = {turn: shot(page, turn) for turn in turns}
    frames[32].save(folder / "explorer.png", optimize=True)
    small = [f.resize((826, 532), Image.Resampling.LANCZOS) for f in frames.values()]
    small += small[-2:0:-1]
    small[0].save(folder / "explorer.webp", save_all=True, append_images=small[1:],
                  duration=140, loop=0, quality=60)  # fmt: skip
    with Image.open(folder / "explorer.webp") as moving:
        assert moving.n_frames == len(small)
    digit, turned = (frames[t].crop((0, 80, 280, 420)) for t in (0, 32))
    assert digit.tobytes() != turned.tobytes(), "the digit turns"


def test_the_readme_has_its_pictures():
    images = Path(__file__).parents[2] / "docs" / "images"
    assert (images / "explorer.png").stat().st_size < 400_000
    assert (images / "explorer.webp").stat().st_size < 1_500_000
