"""The explorer's page in a browser: user actions and what the page shows."""

import math
from contextlib import contextmanager

import pytest
import torch

import torchcaps

DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 400, "height": 800}


@contextmanager
def opened(browser, served, hash="", size=DESKTOP, scheme="light", **options):
    """Open a page; check that it uses no other server and logs nothing to the console."""
    context = browser.new_context(
        viewport=size, color_scheme=scheme, reduced_motion="reduce", accept_downloads=True,
        **options,
    )  # fmt: skip
    page = context.new_page()
    messages, urls = [], []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: urls.append(request.url))
    page.goto(f"http://{served}/{hash}")
    page.wait_for_selector("[data-ready]", timeout=20_000)
    yield page
    assert not messages, messages
    assert all(url.startswith((f"http://{served}/", "data:", "blob:")) for url in urls), urls
    context.close()


def wait_until(page, condition, what=""):
    """Poll a condition; the content security policy forbids playwright's own wait."""
    for _ in range(100):
        if condition():
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"never: {what}")


def claims(page, side="a"):
    """Values of the bars by class."""
    bars = page.locator(f"[data-panel=classes].side-{side} .bar")
    pairs = bars.evaluate_all(
        "all => all.map(b => [...b.querySelectorAll('text')].map(t => t.textContent))"
    )
    return {name.removeprefix("● "): float(value) for name, value in pairs}


def likeliest(page):
    found = claims(page)
    return max(found, key=lambda name: found[name])


def pixels_of(locator):
    """The canvas as text, to compare."""
    return locator.evaluate("canvas => canvas.toDataURL()")


def stroke(page, points):
    box = page.locator("#image").bounding_box()
    for number, (x, y) in enumerate(points):
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
        if not number:
            page.mouse.down()
    page.mouse.up()


def test_a_drawn_digit_is_classified(browser, served):
    line = [(0.5, 0.2), (0.5, 0.4), (0.5, 0.6), (0.5, 0.8)]
    turns = [2 * math.pi * n / 24 for n in range(25)]
    ring = [(0.5 + 0.19 * math.cos(t), 0.5 + 0.27 * math.sin(t)) for t in turns]
    with opened(browser, served, "#v=1&a=capsnet-small.digits") as page:
        page.click("#draw")
        stroke(page, line)
        wait_until(page, lambda: likeliest(page) == "1" and claims(page)["1"] > 0.6, "a line is 1")
        assert claims(page)["0"] < 0.5
        wait_until(page, lambda: "pic=" in page.url, "the drawing is in the address")
        with opened(browser, served, page.url[page.url.index("#") :]) as again:
            wait_until(again, lambda: likeliest(again) == "1", "the link brings it back")
        page.click("#clear")
        stroke(page, ring)
        wait_until(page, lambda: likeliest(page) == "0" and claims(page)["0"] > 0.6, "a ring is 0")


def test_dragging_rotates_the_image(browser, served):
    with opened(browser, served, "#v=1&a=capsnet-small.digits&b=convnet-avg-small.digits") as page:
        before = pixels_of(page.locator("#image"))
        stroke(page, [(0.9, 0.5), (0.8, 0.2), (0.5, 0.1)])
        turned = int(page.get_attribute("#image", "aria-valuenow"))
        assert 80 <= turned <= 100
        assert pixels_of(page.locator("#image")) != before
        wait_until(page, lambda: f"Rotated by {turned}°" in page.inner_text("#verdict"), "rotated")
        page.click("#reset")
        wait_until(page, lambda: pixels_of(page.locator("#image")) == before, "upright again")


def test_the_page_rotates_as_the_library_does(browser, served):
    """The page transforms the digit as `warp` does."""
    from torchcaps.metrics.robustness import transformed

    model, split = torchcaps.load("capsnet-small.digits"), torchcaps.data.load("digits").test
    x = split.batch(slice(5, 6)).images
    with torch.no_grad():
        expected = model.encode(transformed(x, "rotation", 75.0)).scores[0]
    with opened(browser, served, "#v=1&a=capsnet-small.digits&i=5&rot=75") as page:
        wait_until(page, lambda: len(claims(page)) == 10, "bars")
        found = claims(page)
        for name, value in zip("0123456789", expected.tolist(), strict=True):
            assert abs(found[name] - value) <= 0.0051


def test_the_page_states_that_two_models_disagree(browser, served):
    """On the first digit for which the library finds different predictions."""
    from torchcaps.metrics.robustness import transformed

    models = [torchcaps.load(f"{n}-small.digits") for n in ("capsnet", "convnet-avg")]
    images = torchcaps.data.load("digits").test.batch(slice(0, 32)).images
    with torch.no_grad():
        logits = [m.encode(transformed(images, "rotation", 70.0)).logits for m in models]
    margins = [s.softmax(1).topk(2).values.diff(dim=1).abs()[:, 0] for s in logits]
    differ = (logits[0].argmax(1) != logits[1].argmax(1)) & (torch.stack(margins).amin(0) > 0.01)
    number = int(differ.nonzero()[0])
    one, other = (int(s[number].argmax()) for s in logits)
    hash = f"#v=1&a=capsnet-small.digits&b=convnet-avg-small.digits&rot=70&i={number}"
    with opened(browser, served, hash) as page:
        expected = f"Rotated by 70°: CapsNet predicts {one} and ConvNet-Avg predicts {other}"
        wait_until(page, lambda: page.inner_text("#verdict").startswith(expected), expected)


def test_a_changed_unit_changes_pixels(browser, served):
    with opened(browser, served, "#v=1&a=capsnet-small.digits") as page:
        page.locator("[data-panel=capsule]").scroll_into_view_if_needed()
        drawn = page.locator("[data-panel=capsule] canvas").first
        wait_until(page, lambda: len(pixels_of(drawn)) > 200, "drawn")
        before = pixels_of(drawn)
        slider = page.locator("[data-panel=capsule] input[data-unit='3']")
        slider.evaluate("s => { s.value = s.max; s.dispatchEvent(new Event('input')); }")
        wait_until(page, lambda: pixels_of(drawn) != before, "moved")
        page.click("text=reset units")
        wait_until(page, lambda: pixels_of(drawn) == before, "back")


def test_passes_are_stepped_through(browser, served):
    with opened(browser, served, "#v=1&a=capsnet-small.digits") as page:
        panel = page.locator("[data-panel=parse]")
        wait_until(page, lambda: panel.locator("line").count() > 5, "edges")
        assert "pass 3 of 3" in panel.inner_text()
        last = panel.locator("svg").inner_html()
        page.keyboard.press(",")
        wait_until(page, lambda: "pass 2 of 3" in panel.inner_text(), "one pass back")
        assert panel.locator("svg").inner_html() != last
        panel.locator("circle[role=button]").first.focus()


def test_weak_couplings_can_be_hidden(browser, served):
    with opened(browser, served, "#v=1&a=capsnet-small.digits") as page:
        lines = page.locator("[data-panel=parse] line")
        wait_until(page, lambda: lines.count() > 5, "edges")
        before = lines.count()
        slider = page.locator("[data-panel=parse] input[type=range]")
        slider.evaluate("s => { s.value = 0.9; s.dispatchEvent(new Event('input')); }")
        wait_until(page, lambda: 0 < lines.count() < before, "fewer")
        wait_until(page, lambda: "thr=0.9" in page.url, "kept in the address")


def test_a_click_on_a_map_shows_its_pass(browser, served):
    with opened(browser, served, "#v=1&a=inverted-small.digits") as page:
        panel = page.locator("[data-panel=passes]")
        panel.scroll_into_view_if_needed()
        cells = panel.locator(".cell")
        wait_until(page, lambda: cells.count() >= 3, "cells")
        panel.get_by_label("after pass 1").last.click()
        wait_until(page, lambda: "pass 1 of" in page.inner_text("[data-panel=parse]"), "pass 1")
        charts = panel.locator("svg:not(.scale)")
        wait_until(page, lambda: charts.count() == 2, "scores and changes")


def test_masks_and_capsules_can_be_switched_off(browser, served):
    """The reconstruction is that of the library's decoder on the remaining capsules."""
    model = torchcaps.load("sparse-small.digits")
    image = torchcaps.data.load("digits").test.batch(slice(0, 1)).images
    with torch.no_grad():
        output = model.encode(image)
        first = int(output.rankings[-1].rank[0].argmin())
        poses = output.capsules.clone()
        poses[:, first] = 0
        expected = model.decode(poses)[0, 0]
    with opened(browser, served, "#v=1&a=sparse-small.digits") as page:
        panel = page.locator("[data-panel=ranks]")
        panel.scroll_into_view_if_needed()
        wait_until(page, lambda: panel.locator(".bar").count() == 8, "bars")
        panel.locator("input[type=checkbox]").uncheck()
        wait_until(page, lambda: "16 of 16 capsules" in panel.inner_text(), "all draw")
        panel.locator(".bar").first.click()
        wait_until(page, lambda: "15 of 16 capsules" in panel.inner_text(), "one is out")
        canvas = panel.locator(".pictures").first.locator("canvas").nth(2)
        colors = canvas.evaluate("c => [...c.getContext('2d').getImageData(0, 0, 28, 28).data]")
        found = torch.tensor(colors).view(28, 28, 4)[..., 0] / 255
        assert (found - expected).abs().max() < 0.01
        panel.locator("summary", has_text="rank frequencies").click()
        assert panel.locator("details rect").count() == 256


def test_parts_are_outlined_and_steps_can_be_scrubbed(browser, served):
    with opened(browser, served, "#v=1&a=generative-one-small.digits") as page:
        plain = pixels_of(page.locator("#image"))
        panel = page.locator("[data-panel=parts]")
        wait_until(page, lambda: panel.locator("[data-part]").count() > 3, "parts")
        panel.locator("[data-part]").nth(2).focus()
        wait_until(page, lambda: pixels_of(page.locator("#image")) != plain, "outlined")
        assert "Objects of part 2" in panel.inner_text()
        steps = page.locator("[data-panel=steps]")
        steps.locator("summary").click()
        steps.scroll_into_view_if_needed()
        wait_until(page, lambda: "Adam, step 30" in steps.inner_text(), "searched")
        after = pixels_of(steps.locator("canvas").nth(1))
        slider = steps.locator("input[type=range]")
        slider.evaluate("s => { s.value = 0; s.dispatchEvent(new Event('input')); }")
        wait_until(page, lambda: "Adam, step 0" in steps.inner_text(), "the encoder's")
        assert pixels_of(steps.locator("canvas").nth(1)) != after


def test_touch_rotates_the_image(browser, served):
    with opened(browser, served, "#v=1&a=capsnet-small.digits", PHONE, has_touch=True) as page:
        box = page.locator("#image").bounding_box()
        finger = page.context.new_cdp_session(page)
        x, y = box["x"] + 0.9 * box["width"], box["y"] + 0.5 * box["height"]
        for kind, up in (("touchStart", 0), ("touchMove", 20), ("touchMove", 50), ("touchEnd", 0)):
            points = [] if kind == "touchEnd" else [{"x": x, "y": y - up}]
            finger.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        wait_until(page, lambda: int(page.get_attribute("#image", "aria-valuenow")) > 20, "turned")


def test_patches_can_be_hidden(browser, served):
    with opened(browser, served, "#v=1&a=mcae-pretrain-small.digits") as page:
        panel = page.locator("[data-panel=hide]")
        before = pixels_of(panel.locator("figure canvas"))
        panel.locator("[data-patch='24']").click()
        wait_until(page, lambda: "1 of 49 patches" in panel.inner_text(), "one is hidden")
        panel.locator("[data-patch='24']").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press(" ")
        wait_until(page, lambda: "2 of 49 patches" in panel.inner_text(), "by keyboard")
        wait_until(page, lambda: pixels_of(panel.locator("figure canvas")) != before, "drawn anew")


def test_an_accuracy_curve_grows_and_can_be_cancelled(browser, served):
    with opened(browser, served, "#v=1&a=convnet-avg-small.digits") as page:
        page.select_option("[data-panel=curve] select", "scale")
        page.click("#compute")
        wait_until(page, lambda: page.inner_text("#progress") == "done", "done")
        assert page.locator("#curve polyline").count() == 1
        page.select_option("[data-panel=curve] select", "rotation")
        page.click("#compute")
        page.wait_for_timeout(200)
        page.click("#compute")
        assert page.inner_text("#progress") == "cancelled"


def test_everything_works_by_keyboard(browser, served):
    with opened(browser, served, "#v=1&a=capsnet-small.digits&b=convnet-avg-small.digits") as page:
        page.focus("#image")
        page.keyboard.press("ArrowLeft")
        wait_until(page, lambda: page.get_attribute("#image", "aria-valuenow") == "5", "turned")
        page.keyboard.press("]")
        wait_until(page, lambda: "2 of 500" in page.inner_text("#which"), "the next image")
        page.keyboard.press("r")
        wait_until(page, lambda: page.get_attribute("#image", "aria-valuenow") == "0", "upright")
        page.keyboard.press("?")
        assert page.is_visible("#keys")
        page.uncheck("#shortcuts")
        page.focus("#image")
        page.keyboard.press("]")
        page.wait_for_timeout(300)
        assert "2 of 500" in page.inner_text("#which")
        reached = set()
        for key in ["Shift+Tab"] * 8 + ["Tab"] * 30:
            page.keyboard.press(key)
            reached.add(
                page.evaluate("document.activeElement.id || document.activeElement.tagName")
            )
        assert {"run-a", "run-b", "link", "s-rot", "s-no", "draw", "file"} <= reached


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE, {"width": 340, "height": 700}])
def test_layout_fits_and_text_has_contrast(size, scheme, browser, served):
    hash = "#v=1&a=capsnet-small.digits&b=inverted-small.digits"
    with opened(browser, served, hash, size, scheme) as page:
        page.locator("[data-panel=parse]").first.scroll_into_view_if_needed()
        wait_until(page, lambda: page.locator("[data-panel=parse] line").count() > 5, "drawn")
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        assert page.evaluate(CONTRAST) >= 4.5


CONTRAST = """() => {
  const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, n) => sum + c * [0.2126, 0.7152, 0.0722][n], 0);
  const under = (e) => {
    for (; e; e = e.parentElement) {
      const colour = numbers(getComputedStyle(e).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  let least = 99;
  const words = "h1, h2, p, label, button, figcaption, th, td, dt, summary, text";
  for (const e of document.querySelectorAll(words)) {
    if (!e.textContent.trim() || !e.getClientRects().length) continue;
    const style = getComputedStyle(e);
    const colour = numbers(e.tagName === "text" ? style.fill : style.color);
    const [a, b] = [light(colour), light(under(e))].sort((p, q) => q - p);
    least = Math.min(least, (a + 0.05) / (b + 0.05));
  }
  return least;
}"""


def test_the_url_holds_only_valid_state(browser, served):
    hash = "#v=1&a=capsnet-small.nobody&rot=9999&sc=x&i=-4&d=1,x,2&hide=<script>&pic=!!"
    with opened(browser, served, hash) as page:
        assert page.get_attribute("#image", "aria-valuenow") == "180"
        page.select_option("#run-b", "convnet-avg-small.digits")
        wait_until(page, lambda: "b=convnet-avg-small.digits" in page.url, "kept")
        assert "script" not in page.url


def test_image_files_open_and_others_are_rejected(browser, served, tmp_path):
    from PIL import Image

    Image.new("L", (50, 50), 255).save(tmp_path / "white.png")
    (tmp_path / "text.png").write_text("no image")
    with opened(browser, served, "#v=1&a=capsnet-small.digits") as page:
        page.set_input_files("#file", tmp_path / "white.png")
        wait_until(page, lambda: "white.png" in page.inner_text("#which"), "opened")
    context = browser.new_context(reduced_motion="reduce")
    page = context.new_page()  # a refused picture is an error of the network to a console
    page.goto(f"http://{served}/#v=1&a=capsnet-small.digits")
    page.wait_for_selector("[data-ready]")
    page.set_input_files("#file", tmp_path / "text.png")
    wait_until(page, lambda: "not an image" in page.inner_text("#banner"), "rejected")
    context.close()


def test_saved_panels_hold_their_provenance(browser, served, tmp_path):
    with opened(browser, served, "#v=1&a=capsnet-small.digits&rot=30") as page:
        saved = []
        page.on("download", lambda download: saved.append(download))
        page.click("[data-panel=classes] .save")
        wait_until(page, lambda: len(saved) == 2, "SVG and PNG")
        for one in saved:
            one.save_as(tmp_path / one.suggested_filename)
        svg = (tmp_path / "capsnet-small.digits-classes.svg").read_text()
        assert "capsnet-small.digits" in svg and "rot=30" in svg and "var(" not in svg
        assert b"tEXttorchcaps" in (tmp_path / "capsnet-small.digits-classes.png").read_bytes()


def test_the_page_reports_a_lost_server(browser, served):
    context = browser.new_context(reduced_motion="reduce")
    page = context.new_page()
    page.goto(f"http://{served}/#v=1&a=capsnet-small.digits")
    page.wait_for_selector("[data-ready]")
    context.set_offline(True)
    page.focus("#image")
    page.keyboard.press("ArrowLeft")
    wait_until(page, lambda: "does not answer" in page.inner_text("#banner"), "reported")
    context.set_offline(False)
    wait_until(page, lambda: page.is_hidden("#banner"), "it is back")
    context.close()
