"""The documentation site: it builds without a warning, its links lead somewhere, nothing is loaded
from elsewhere, no text runs over the edge or is hard to read.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site without running its notebooks."""
    pytest.importorskip("sphinx")
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "scripts/site.py", str(out)],
        cwd=ROOT,
        env={**os.environ, "NOTEBOOKS": "0", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_every_link_and_anchor_is_there(site):
    pages = {p.resolve(): p.read_text(encoding="utf-8") for p in site.rglob("*.html")}
    places = {p: set(re.findall(r'id="([^"]+)"', text)) for p, text in pages.items()}
    assert len(pages) > 50
    for page, text in pages.items():
        for link in set(re.findall(r'(?:href|src)="([^"]*)"', text)):
            file, _, place = link.partition("#")
            if file.startswith(("http", "mailto:", "data:")):
                continue
            target = (page.parent / file.partition("?")[0]).resolve() if file else page
            assert target.exists(), f"{page.name}: {link}"
            if place and target in places:
                assert place in places[target], f"{page.name}: {link}"


def test_pages_load_nothing_from_elsewhere(site):
    loaded = re.compile(r'(?:<script[^>]*src|<link[^>]*href|<img[^>]*src)="(?:https?:)?//', re.I)
    for page in site.rglob("*.html"):
        assert not loaded.search(page.read_text(encoding="utf-8")), page
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//", style.read_text()), style


def test_formulas_are_mathml(site):
    text = (site / "background" / "capsules.html").read_text(encoding="utf-8")
    assert text.count("<math") > 5 and "mathjax.js" not in text.lower()


def test_every_public_name_has_its_place(site):
    from tests.test_docstrings import PUBLIC

    text = "".join(p.read_text(encoding="utf-8") for p in (site / "reference/api").glob("*.html"))
    missing = [name for name in PUBLIC if f'id="{name}"' not in text]
    assert not missing


def test_pages_fit_and_have_contrast(site, browser, tmp_path):
    from scripts.screenshots import PAGES, faults, readme_page, views

    addresses = [(site / f"{name}.html").as_uri() for name in PAGES]
    addresses.append(readme_page(ROOT, tmp_path).as_uri())
    found = [
        f"{address} {view}: {fault}"
        for address in addresses
        for view, page in views(browser, address)
        for fault in faults(page)
    ]
    assert not found


def test_a_page_with_faults_is_noticed(browser, tmp_path):
    from scripts.screenshots import faults, views

    page = tmp_path / "page.html"
    page.write_text(
        "<body style='background:#fff'><p style='color:#999;width:2000px'>pale and wide</p></body>"
    )
    for _, view in views(browser, page.as_uri()):
        words = " ".join(faults(view))
        assert "contrast" in words and "scrolls sideways" in words
