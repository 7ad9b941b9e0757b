"""Pictures of the explorer in docs/images: explorer.png, and explorer.webp, which rotates an image.

python scripts/explorer_pictures.py
"""

import re
import subprocess
import sys
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from scripts.screenshots import browser

IMAGES = Path(__file__).resolve().parent.parent / "docs/images"
MODELS = ("capsnet-small.digits", "convnet-avg-small.digits")
STATE = "#v=1&a={}&b={}&i=157&rot=32".format(*MODELS)
RISING = range(-96, 96, 8)
ROTATE = """(degrees) => {
  const slider = document.getElementById("s-rot");
  slider.value = degrees;
  slider.dispatchEvent(new Event("input", {bubbles: true}));
}"""


def main() -> None:
    command = [sys.executable, "-m", "torchcaps", "explore", *MODELS, "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            address = re.search(r"http://\S+", server.stdout.readline())
            assert address
            take(address[0])
        finally:
            server.terminate()


def take(address: str) -> None:
    with sync_playwright() as playwright:
        page = browser(playwright).new_page(viewport={"width": 1180, "height": 760})
        page.goto(address + STATE)
        page.get_by_text("Rotated by 32°").wait_for()
        page.wait_for_timeout(3000)  # all panels
        page.screenshot(path=IMAGES / "explorer.png")
        frames = []
        for degrees in (*RISING, *(-d for d in RISING)):
            page.evaluate(ROTATE, degrees)
            page.wait_for_timeout(600)
            picture = Image.open(BytesIO(page.screenshot())).convert("RGB")
            frames.append(picture.resize((826, 532), Image.Resampling.LANCZOS))
        first, *rest = frames
        first.save(IMAGES / "explorer.webp", save_all=True, append_images=rest, duration=140,
                   loop=0, quality=70, method=6)  # fmt: skip


if __name__ == "__main__":
    main()
