"""The page without a server: ONNX graphs that match the models, a folder, a single file."""

import functools
import http.server
import os
import threading

import pytest
import torch

import torchcaps
from tests.explorer.test_page import opened, wait_until
from tests.models.test_export import ONE_EACH, disturbed
from torchcaps.cli import main
from torchcaps.errors import TorchcapsError
from torchcaps.explorer.graphs import write_graphs
from torchcaps.explorer.questions import QUESTIONS, about
from torchcaps.explorer.shelf import Shelf
from torchcaps.explorer.web import RUNTIME, VENDOR, export_web
from torchcaps.models.hub import pretrained_names

pytest.importorskip("onnxruntime")
QUICK = ("convnet-avg", "mcae-pretrain", "sparse", "vae", "capsnet")
"""Families with fast exports; the others run with TORCHCAPS_ATTACK."""
WHOLE = sorted({*ONE_EACH.values(), "mcae-pretrain", *QUICK} - {"resnet18"})
RUN = "sparse-small.digits"
RUNS = pretrained_names() if "TORCHCAPS_ATTACK" in os.environ else [RUN]
"""Models to compare in a browser; all pretrained models with TORCHCAPS_ATTACK."""


@pytest.mark.parametrize("name", WHOLE if "TORCHCAPS_ATTACK" in os.environ else QUICK)
def test_graphs_match_the_model(name, tmp_path):
    """`write_graphs` itself compares each graph at sizes 1, 3 and 5."""
    graphs = write_graphs(disturbed(name), tmp_path)
    assert graphs and {f"{q}.onnx" for q in graphs} | {"weights.bin"} == {
        p.name for p in tmp_path.iterdir()
    }


def test_a_graph_that_differs_raises(tmp_path, monkeypatch):
    from torchcaps.explorer import graphs

    monkeypatch.setattr(graphs, "CLOSE", 1e-30)
    with pytest.raises(TorchcapsError, match="differs from the model"):
        write_graphs(disturbed("convnet-avg"), tmp_path)


def test_what_lies_beside_the_page_is_not_served(tmp_path, monkeypatch):
    for name in RUNTIME:
        (tmp_path / name).write_text("")
    left = tmp_path / "page.tmp/0/secret"
    left.parent.mkdir(parents=True)
    left.write_text("of a killed export, or of the user")

    def graphs(model, folder):
        (folder / "encode.onnx").write_text("")
        return {"encode": {}}

    monkeypatch.setattr("torchcaps.explorer.web.write_graphs", graphs)
    monkeypatch.setattr("torchcaps.explorer.web._curves", lambda model, split: {})
    export_web(Shelf([RUN], bundled=False), tmp_path / "page", runtime=tmp_path)
    assert (tmp_path / "page/models/0/encode.onnx").exists()
    assert not list((tmp_path / "page").rglob("secret")) and left.exists()


@pytest.fixture(scope="module")
def runtime():
    if not all((VENDOR / name).is_file() for name in RUNTIME):
        if os.environ.get("CI"):
            pytest.fail("onnxruntime-web is not here: make vendor.")
        pytest.skip("needs onnxruntime-web: make vendor")


@pytest.fixture(scope="module")
def pages(runtime, tmp_path_factory):
    """An exported folder of models and a single file of one model."""
    folder = tmp_path_factory.mktemp("web")
    export_web(Shelf(RUNS, bundled=False), folder / "page")
    assert main(["export", RUN, "--format", "web", "--single-file",
                 "--out", str(folder / "page.html")]) == 0  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def hosted(pages):
    """The folder on a plain web server."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map,
                          ".mjs": "text/javascript"}  # fmt: skip

        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=str(pages / "page"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


ASK = """async ([address, run, question, given]) => {
  const { backend } = await import(new URL("./backend.js", address).href);
  const tensors = Object.entries(given).map(([k, { shape, data }]) => [k, { shape, data: Float32Array.from(data) }]);
  const answer = await backend.ask(run, question, Object.fromEntries(tensors));
  return Object.fromEntries(Object.entries(answer).map(([k, t]) => [k, [...t.data]]));
}"""  # noqa: E501


@pytest.mark.parametrize("run", RUNS)
def test_served_and_static_pages_give_the_same_tensors(run, browser, served, hosted):
    """Every question of a model, both beside PyTorch with weights that are already rounded, as the
    bundled ones are."""
    model = torchcaps.load(run).requires_grad_(False)
    image = torchcaps.data.load("digits").test.batch(slice(3, 4)).images[0]
    torch.manual_seed(0)
    for question in sorted(set(about(model)["questions"]) - {"steps"}):
        shapes = QUESTIONS[question].input_shapes(model)
        given = {n: torch.rand([2 if k is None else k for k in s]) for n, s in shapes.items()}
        given |= {"image": image} if "image" in given else {}
        with torch.no_grad():
            expected = QUESTIONS[question].answer(model, given)
        packed = {
            n: {"shape": list(t.shape), "data": t.flatten().tolist()} for n, t in given.items()
        }
        for host in (served, hosted):
            with opened(browser, host, f"#v=1&a={run}") as page:
                found = page.evaluate(ASK, [f"http://{host}/", run, question, packed])
            assert set(found) == set(expected)
            for key, tensor in expected.items():
                actual = torch.tensor(found[key])
                if key.endswith(".edges"):  # equals may swap
                    actual, tensor = actual.view(-1, 3)[:, 2], tensor[:, 2]
                most = 1e-4 * max(1.0, float(tensor.abs().max()))
                assert (actual - tensor.flatten()).abs().max() < most, (question, key)


SEARCH = """async ([address, run, data]) => {
  const { backend } = await import(new URL("./backend.js", address).href);
  const image = { shape: [1, 28, 28], data: Float32Array.from(data) };
  const answer = await backend.ask(run, "steps", { image });
  return Object.fromEntries(Object.entries(answer).map(([k, t]) => [k, [...t.data]]));
}"""


@pytest.mark.skipif("TORCHCAPS_ATTACK" not in os.environ, reason="a minute: TORCHCAPS_ATTACK=1")
def test_search_without_a_server_matches_the_server(browser, served, hosted):
    """Steps of Adam in the page on exported slopes, beside PyTorch's own: one slope is compared to
    1e-4 where it is exported; over thirty steps rounding grows at the kinks of templates.
    """
    image = torchcaps.data.load("digits").test.batch(slice(3, 4)).images[0]
    found = []
    for host in (served, hosted):
        with opened(browser, host, "#v=1&a=generative-one-small.digits") as page:
            given = [f"http://{host}/", "generative-one-small.digits", image.flatten().tolist()]
            found.append(page.evaluate(SEARCH, given))
    curves = [torch.tensor(f["adam.curve"]) for f in found]
    assert len(curves[0]) == 31 and curves[0][-1] > curves[0][0] + 10
    gain = float(curves[0][-1] - curves[0][0])
    assert (curves[1] - curves[0]).abs().max() < 0.02 * gain
    assert len(found[1]["adam.drawn"]) == 31 * 784


def test_a_single_file_opens_from_a_disk(browser, pages):
    context = browser.new_context(reduced_motion="reduce")
    page = context.new_page()
    messages, urls = [], []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: urls.append(request.url))
    page.goto(f"file://{pages / 'page.html'}#v=1&a={RUN}")
    page.wait_for_selector("[data-panel=ranks][data-ready]", timeout=30_000)
    page.focus("#image")
    page.keyboard.press("ArrowLeft")
    wait_until(page, lambda: int(page.get_attribute("body", "data-answers")) > 3, "answers")
    assert not messages, messages
    assert all(url.startswith(("file:", "data:", "blob:")) for url in urls), urls
    context.close()


def test_existing_files_are_not_overwritten(pages, capsys):
    assert main(["export", RUN, "--format", "web", "--out", str(pages)]) == 1
    assert "already exists" in capsys.readouterr().err
    assert main(["export", RUN, "--single-file", "--out", str(pages / "x.onnx")]) == 2
