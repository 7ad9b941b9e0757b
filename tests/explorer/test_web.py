"""The page without a server: graphs that answer like the models, a folder, a single file."""

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
from torchcaps.explorer.questions import QUESTIONS
from torchcaps.explorer.shelf import Shelf
from torchcaps.explorer.web import RUNTIME, VENDOR, export_web

pytest.importorskip("onnxruntime")
QUICK = ("convnet-avg", "mcae-pretrain", "sparse", "vae", "capsnet")
"""Families whose graphs are made in seconds; the others with TORCHCAPS_ATTACK."""
WHOLE = sorted({*ONE_EACH.values(), "mcae-pretrain", *QUICK} - {"resnet18"})
RUN = "zoo:sparse"


@pytest.mark.parametrize("name", WHOLE if "TORCHCAPS_ATTACK" in os.environ else QUICK)
def test_graphs_of_every_family_answer_like_the_model(name, tmp_path):
    """`write_graphs` compares each at 1, 3 and 5 before it gives it out."""
    made = write_graphs(disturbed(name), tmp_path)
    assert made and {f"{q}.onnx" for q in made} | {"weights.bin"} == {
        p.name for p in tmp_path.iterdir()
    }


def test_a_graph_that_differs_is_not_given_out(tmp_path, monkeypatch):
    from torchcaps.explorer import graphs

    monkeypatch.setattr(graphs, "CLOSE", 1e-30)
    with pytest.raises(TorchcapsError, match="differs from the model"):
        write_graphs(disturbed("convnet-avg"), tmp_path)


@pytest.fixture(scope="module")
def runtime():
    if not all((VENDOR / name).is_file() for name in RUNTIME):
        if os.environ.get("CI"):
            pytest.fail("onnxruntime-web is not here: make vendor.")
        pytest.skip("needs onnxruntime-web: make vendor")


@pytest.fixture(scope="module")
def pages(runtime, tmp_path_factory):
    """A folder and a file of one model."""
    folder = tmp_path_factory.mktemp("web")
    export_web(Shelf.of(RUN), folder / "page")
    assert main(["export", RUN, "--format", "web", "--single-file",
                 "--out", str(folder / "page.html")]) == 0  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def hosted(pages):
    """The folder on a server that knows nothing of torchcaps."""

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


ASK = """async ([address, names]) => {
  const { backend } = await import(new URL("./backend.js", address).href);
  const found = await backend.images(names.run, 0, 3);
  const size = found.images.data.length / found.images.shape[0], answers = [];
  for (let n = 0; n < found.images.shape[0]; n++) {
    const data = Float32Array.from(found.images.data.subarray(n * size, (n + 1) * size), (v) => v / 255);
    const image = { shape: found.images.shape.slice(1), data };
    const answer = await backend.ask(names.run, names.question, { image });
    answers.push(Object.fromEntries(Object.entries(answer).map(([k, t]) => [k, [...t.data]])));
  }
  return answers;
}"""  # noqa: E501


@pytest.mark.parametrize("question", ["encode", "ranks"])
def test_served_and_static_pages_give_the_same_tensors(question, browser, served, hosted):
    """Both beside PyTorch with weights that are already rounded, as the zoo's are."""
    model = torchcaps.load(RUN)
    images = torchcaps.data.load("digits").test.batch(slice(0, 3)).images
    names = {"run": RUN, "question": question}
    found = []
    for host in (served, hosted):
        with opened(browser, host, f"#v=1&a={RUN}") as page:
            found.append(page.evaluate(ASK, [f"http://{host}/", names]))
    for number, image in enumerate(images):
        with torch.no_grad():
            wanted = QUESTIONS[question].answer(model, {"image": image})
        for answers in found:
            for key, tensor in wanted.items():
                there = torch.tensor(answers[number][key])
                assert (there - tensor.flatten()).abs().max() < 1e-4, key


def test_a_single_file_opens_from_a_disk(browser, pages):
    context = browser.new_context(reduced_motion="reduce")
    page = context.new_page()
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"file://{pages / 'page.html'}#v=1&a={RUN}")
    page.wait_for_selector("[data-panel=ranks][data-ready]", timeout=30_000)
    page.focus("#image")
    page.keyboard.press("ArrowLeft")
    wait_until(page, lambda: int(page.get_attribute("body", "data-answers")) > 3, "answers")
    assert not said, said
    assert all(url.startswith(("file:", "data:", "blob:")) for url in asked), asked
    context.close()


def test_what_is_there_is_not_written_over(pages, capsys):
    assert main(["export", RUN, "--format", "web", "--out", str(pages)]) == 1
    assert "is there already" in capsys.readouterr().err
    assert main(["export", RUN, "--single-file", "--out", str(pages / "x.onnx")]) == 2
