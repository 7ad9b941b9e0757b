"""Screenshots of the site and of README.md: `make screenshots` -> build/screenshots.

python scripts/screenshots.py SITE OUT [PAGE…]

Each page at 1200 and 400 px, light and dark, as PAGE-WIDTH-SCHEME.png. `faults` finds text that
runs over the page's edge or has too little contrast.
"""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGES = (
    "index", "get-started/first-steps", "tutorials/quickstart", "tutorials/look-inside", "gallery",
    "how-to/your-images", "reference/api/layers", "reference/cli", "background/capsules",
    "papers/robustness", "lab-notes/index",
)  # fmt: skip
WIDTHS, SCHEMES = (1200, 400), ("light", "dark")
FAULTS = """() => {
  const faults = [];
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width + 1)
    faults.push(`scrolls sideways: ${document.documentElement.scrollWidth} > ${width}`);
  const canvas = Object.assign(document.createElement("canvas"), {width: 1, height: 1});
  const context = canvas.getContext("2d", {willReadFrequently: true});
  const rgba = (color) => {
    context.clearRect(0, 0, 1, 1); context.fillStyle = color; context.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const luminance = (c) => {
    const [r, g, b] = c.map((v) => v / 255).map((v) =>
      v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const background = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const color = rgba(getComputedStyle(e).backgroundColor);
      if (color[3] > 0.95) return color;
    }
    return rgba(getComputedStyle(document.body).backgroundColor);
  };
  const seen = new Set();
  const walker = document.createTreeWalker(
    document.querySelector("article") || document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, element = node.parentElement;
    if (!node.textContent.trim() || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    if (style.visibility === "hidden" || +style.opacity === 0) continue;
    const text = rgba(style.color), under = background(element);
    const [high, low] = [luminance(text.slice(0, 3)), luminance(under.slice(0, 3))]
      .sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    const key = style.color + under;
    if (ratio < 4.5 && !seen.has(key)) {
      seen.add(key);
      faults.push(`contrast ${ratio.toFixed(2)}: "${node.textContent.trim().slice(0, 30)}"`);
    }
  }
  return faults;
}"""
README = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><base href="{base}/"><style>
:root {{ color-scheme: light dark }}
body {{ max-width: 50rem; margin: 1rem auto; padding: 0 1rem; font: 16px/1.5 sans-serif;
  background: light-dark(#fff, #0d1117) }}
img {{ max-width: 100% }} table {{ display: block; overflow-x: auto; border-collapse: collapse }}
td, th {{ border: 1px solid gray; padding: .3rem .6rem }} pre {{ overflow-x: auto }}
a {{ color: light-dark(#0b57a4, #8ab8f0) }}
</style><article>{body}</article></html>"""


def browser(playwright: Any) -> Any:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    return playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])


def views(started: Any, address: str) -> Iterator[tuple[str, Any]]:
    """The page in every width and color scheme, with a name for each."""
    for scheme in SCHEMES:
        context = started.new_context(color_scheme=scheme)
        page = context.new_page()
        page.goto(address)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            yield f"{width}-{scheme}", page
        context.close()


def faults(page: Any) -> list[str]:
    """Text over the edge, or with a contrast below 4.5 to 1."""
    return page.evaluate(FAULTS)


def readme_page(root: Path, out: Path) -> Path:
    """README.md as a page, near enough to how a code host shows it."""
    from markdown_it import MarkdownIt

    body = MarkdownIt("gfm-like", {"linkify": False}).render((root / "README.md").read_text())
    out.mkdir(parents=True, exist_ok=True)
    page = out / "README.html"
    page.write_text(README.format(base=root.resolve().as_uri(), body=body))
    return page


def main(site: Path, out: Path, pages: list[str]) -> int:
    from playwright.sync_api import sync_playwright

    addresses = {name: (site / f"{name}.html").resolve().as_uri() for name in pages or PAGES}
    if not pages:
        addresses["README"] = readme_page(Path(), out).resolve().as_uri()
    wrong = 0
    out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        started = browser(playwright)
        for name, address in addresses.items():
            for view, page in views(started, address):
                page.screenshot(path=out / f"{name.replace('/', '-')}-{view}.png", full_page=True)
                for fault in faults(page):
                    wrong += 1
                    print(f"{name} {view}: {fault}")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
