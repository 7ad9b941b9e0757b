"""Pages of every public name, from docstrings: `make reference` -> build/reference/index.html."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

MODULES = ("torchcaps", "torchcaps.api", "torchcaps.estimator")
"""Pages beside those of the packages that torchcaps itself names."""


def build(out: Path) -> None:
    import pdoc.render

    import torchcaps

    for name in torchcaps.__all__:  # public names are imported when asked for; a page asks for all
        setattr(torchcaps, name, getattr(torchcaps, name))
    pdoc.render.configure(docformat="markdown", show_source=False, search=True)
    pdoc.pdoc(*MODULES, output_directory=out)
    for page in out.rglob("*.html"):
        page.write_text(_to_classes(page.read_text(encoding="utf-8")), encoding="utf-8")
    broken = list(broken_links(out))
    if broken:
        raise SystemExit(f"{len(broken)} links lead nowhere: {', '.join(broken[:10])}")


def _to_classes(text: str) -> str:
    """Links to what a class inherits, of which pdoc makes no place, lead to the class."""
    places = set(re.findall(r'id="([^"]+)"', text))
    return re.sub(
        r'href="#([\w.]+)\.\w+"',
        lambda m: m[0] if m[0][7:-1] in places else f'href="#{m[1]}"',
        text,
    )


def broken_links(folder: Path) -> Iterator[str]:
    """Links between pages that have no page or no place to lead to."""
    pages = {p.resolve(): p.read_text(encoding="utf-8") for p in folder.rglob("*.html")}
    places = {p: set(re.findall(r'id="([^"]+)"', text)) for p, text in pages.items()}
    for page, text in pages.items():
        for link in set(re.findall(r'href="([^":$]+)"', text)):
            file, _, place = link.partition("#")
            target = (page.parent / file).resolve() if file else page
            if target not in pages or (place and place not in places[target]):
                yield f"{page.name} -> {link}"


if __name__ == "__main__":
    build(Path(sys.argv[1]))
