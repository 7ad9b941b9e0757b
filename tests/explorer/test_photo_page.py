"""The explorer's page with a model of photographs: long and hostile names, a blank decoder, one
column, and panels that lag behind a rotation.
"""

import base64
import io
import threading
import time
from contextlib import contextmanager

import pytest
import torch
from PIL import Image

import torchcaps
from tests.explorer.test_page import DESKTOP, PHONE, opened, wait_until
from torchcaps.analysis.nearest import TrainingPoses
from torchcaps.explorer.shelf import NEIGHBORS

pytestmark = pytest.mark.slow
NAMES = ("<img src=x onerror=alert(1)>", "English springer spaniel with a ball",
         "tronçonneusetronçonneuse", "gas pump", "$\\frac{", "church", "golf ball",
         "French horn", "parachute", "cassette player")  # fmt: skip


@contextmanager
def served_alone(folder, blank=""):
    """The address of a server with one saved model."""
    import socket

    from torchcaps.explorer.server import make_server
    from torchcaps.explorer.shelf import Shelf

    shelf = Shelf([folder], bundled=False)
    if blank:
        about = shelf.about
        shelf.about = lambda key: {**about(key), "blank": blank}
    sock = socket.socket(proto=socket.IPPROTO_TCP)
    sock.bind(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    server = make_server(shelf, port, "token")
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"127.0.0.1:{port}/token"
    server.should_exit = True
    thread.join(10)
    sock.close()


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """The address of a server with one model in color whose class names are awkward."""
    torch.manual_seed(0)
    model = torchcaps.create_model("capsnet-small", image_size=20, in_channels=3, channels=8)
    model.class_names = NAMES
    folder = tmp_path_factory.mktemp("saved") / "a-model-with-a-rather-long-name-of-its-own"
    model.save_pretrained(folder)
    with served_alone(folder, "The decoder learned nothing: an example.") as address:
        yield address


ROOM = """Math.min(...[...document.querySelectorAll(".panel svg text")].map((text) => {
  const inside = text.getBoundingClientRect();
  const panel = text.closest(".panel").getBoundingClientRect();
  return Math.min(inside.left - panel.left, panel.right - inside.right);
}))"""


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_long_names_wrap_and_are_escaped(size, named, browser):
    with opened(browser, named, "", size) as page:
        bars = page.locator("[data-panel=classes] .bar")
        wait_until(page, lambda: bars.count() == 10, "bars")
        assert page.locator("#panels img").count() == 0
        shown = page.locator("[data-panel=classes] .bar text:first-of-type").all_text_contents()
        assert "<img" in " ".join(shown)
        if size is DESKTOP:
            assert "English springer spaniel with a ball" in [" ".join(t.split()) for t in shown]
        assert page.evaluate(ROOM) >= 0, "a name leaves its panel"
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]


def test_a_decoder_that_learned_nothing_shows_a_sentence(named, browser):
    with opened(browser, named) as page:
        for panel in ("drawn", "capsule"):
            found = page.locator(f"[data-panel={panel}]")
            assert "The decoder learned nothing" in found.inner_text()
            assert found.locator("canvas").count() == 0


def test_panels_of_one_model_fill_both_columns(named, browser):
    with opened(browser, named) as page:
        wait_until(page, lambda: page.locator("[data-panel=parse] line").count() > 3, "drawn")
        assert page.is_hidden("#columns")
        lefts = page.locator("#single .panel").evaluate_all(
            "all => all.map((e) => e.getBoundingClientRect().left)"
        )
        assert len(set(lefts)) == 2


def test_the_routing_graph_begins_with_the_strongest_edges(named, browser):
    with opened(browser, named) as page:
        lines = page.locator("[data-panel=parse] line")
        wait_until(page, lambda: lines.count() > 3, "drawn")
        assert lines.count() <= 20 and "thr=" not in page.url
        slider = page.locator("[data-panel=parse] input[type=range]")
        slider.evaluate("s => { s.value = 0; s.dispatchEvent(new Event('input')); }")
        wait_until(page, lambda: lines.count() > 20, "all that the server sends")


def test_maps_have_a_color_scale(served, browser):
    with opened(browser, served, "#v=1&a=inverted-small.digits") as page:
        for panel in ("where", "passes"):
            page.locator(f"[data-panel={panel}]").scroll_into_view_if_needed()
            scale = page.locator(f"[data-panel={panel}] svg.scale").first
            scale.wait_for()
            assert scale.locator("rect").count() == 16
            assert scale.locator("text").all_text_contents()[:2] == ["0", "received"]


def test_nearest_training_images_are_those_of_the_library(served, browser):
    data, model = torchcaps.data.load("digits"), torchcaps.load("capsnet-small.digits")
    poses = TrainingPoses(model, data)
    with opened(browser, served, "#v=1&a=capsnet-small.digits&i=3") as page:
        panel = page.locator("[data-panel=nearest]")
        panel.scroll_into_view_if_needed()
        wait_until(page, lambda: panel.locator("figure").count() == NEIGHBORS, "drawn")
        expected = poses.nearest(data.test.batch(slice(3, 4)).images, NEIGHBORS)
        labels = poses.split.labels[expected.rows[0]].tolist()
        names = [f"{c} {v:.3f}" for c, v in zip(labels, expected.similarity[0], strict=True)]
        assert panel.locator("figcaption").all_text_contents() == names
        assert f"“{expected.predicted.item()}”" in " ".join(
            panel.locator("p.words").all_text_contents()
        )


def test_errors_of_features_by_class(browser, tmp_path):
    torch.manual_seed(0)
    model = torchcaps.create_model(
        "capsule-head", image_size=64, num_classes=4, routing="uniform", reconstruction="features"
    )
    model.class_names = ("apple", "pear", "plum", "fig")
    model.save_pretrained(tmp_path / "fruits")
    with served_alone(tmp_path / "fruits") as address, opened(browser, address) as page:
        panel = page.locator("[data-panel=errors]")
        panel.scroll_into_view_if_needed()
        wait_until(page, lambda: panel.locator("figure").count() > 1, "drawn")
        captions = [text.split(": ") for text in panel.locator("figcaption").all_text_contents()]
        assert {name for name, _ in captions} <= set(model.class_names)
        assert all(float(error) > 0 for _, error in captions)
        assert "squared error" in (panel.locator("svg.scale").first.text_content() or "")


def test_the_difference_is_dark_in_the_dark(served, browser):
    """No difference has the color of the page, also after the theme's switch."""
    hash = "#v=1&a=capsnet-small.digits"
    with opened(browser, served, hash, scheme="dark") as page:
        canvas = page.locator("[data-panel=drawn] canvas").nth(2)
        assert max(corner(canvas)) < 60
        page.click("#theme")
        wait_until(page, lambda: min(corner(canvas)) > 200, "light")


def corner(canvas):
    """The color of a canvas in its corner, where digits are black."""
    content = canvas.evaluate("canvas => canvas.toDataURL().split(',')[1]")
    with Image.open(io.BytesIO(base64.b64decode(content))) as image:
        return image.convert("RGB").getpixel((0, 0))


def test_panels_follow_a_rotation_or_say_which_image_they_show(served, browser):
    """Rotating on and on: maps are asked for meanwhile; an answer that is held back is named."""
    hash = "#v=1&a=capsnet-small.digits"
    with opened(browser, served, hash) as page:
        panel = page.locator("[data-panel=where]")
        panel.scroll_into_view_if_needed()
        wait_until(page, lambda: panel.get_attribute("data-ready"), "drawn")
        page.evaluate("document.getElementById('play').click()")
        first = int(panel.get_attribute("data-ready"))
        wait_until(page, lambda: int(panel.get_attribute("data-ready")) > first + 2, "it follows")
        page.evaluate("document.getElementById('play').click()")
        wait_until(page, lambda: "old" not in panel.get_attribute("class"), "it has caught up")
        held, hold = [], [True]
        page.route("**/where", lambda r: held.append(r) if hold[0] else r.continue_())
        page.evaluate("document.getElementById('play').click()")
        note = panel.locator(".which")
        wait_until(page, lambda: note.is_visible(), "late")
        assert "Shows image 1, " in note.inner_text()
        page.evaluate("document.getElementById('play').click()")
        hold[0] = False
        for route in held:
            route.continue_()
        wait_until(page, lambda: not note.is_visible(), "not late any more")
