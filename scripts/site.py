"""Build the documentation site: `make docs` -> build/site; NOTEBOOKS=0 does not run notebooks.

python scripts/site.py OUT

A warning of Sphinx is an error. The explorer is a part of the site, as a page without a server;
its files of onnxruntime-web come by npm (`make vendor`).
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.vendor import vendor
from torchcaps.errors import TorchcapsError
from torchcaps.explorer.shelf import Shelf
from torchcaps.explorer.web import export_web

EXPLORED = ("capsnet-small.digits", "convnet-avg-small.digits")
WITHOUT = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Explorer</title>
<p>The explorer is not a part of this build: {reason} Run <code>make vendor</code> and
<code>make docs</code>, or <code>torchcaps explore</code>. <a href="../index.html">Back</a></p>
</html>
"""


def build(out: Path) -> int:
    """Sphinx's pages. -> its exit code"""
    from sphinx.cmd.build import main

    return main(["-W", "--keep-going", "-q", "-b", "html", "docs", str(out)])


def add_explorer(page: Path, reason: str = "") -> None:
    """Write the explorer into one file, which also opens from a disk; or why it is not there."""
    page.parent.mkdir(parents=True, exist_ok=True)
    try:
        if reason:
            raise TorchcapsError(reason)
        vendor()
        page.unlink(missing_ok=True)
        export_web(Shelf(list(EXPLORED), bundled=False), page, single_file=True)
    except (SystemExit, TorchcapsError) as error:
        page.write_text(WITHOUT.format(reason=error))
        print(f"{page}: {error}", file=sys.stderr)


if __name__ == "__main__":
    site = Path(sys.argv[1])
    failed = build(site)
    quick = os.environ.get("NOTEBOOKS") == "0"
    add_explorer(site / "explorer" / "index.html", "NOTEBOOKS=0 leaves it out." if quick else "")
    sys.exit(failed)
