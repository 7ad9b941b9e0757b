"""The explorer's answers: right, bounded, and for pages of this machine alone."""

import io
import json
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load, save

import torchcaps
from torchcaps.explorer.files import static_files
from torchcaps.explorer.questions import QUESTIONS, about
from torchcaps.models.zoo import zoo_names

OWN = {"X-Torchcaps": "1"}


@pytest.fixture(scope="module")
def client(served):
    with httpx.Client(base_url=f"http://{served}", headers=OWN, timeout=60) as made:
        yield made


def image(seed=0):
    return torch.rand(1, 28, 28, generator=torch.Generator().manual_seed(seed))


def ask(client, question, tensors, run="zoo:capsnet"):
    return client.post(f"/api/runs/{run}/{question}", content=save(tensors))


def test_runs_say_what_can_be_asked(client):
    runs = client.get("/api/runs").json()
    assert {r["id"] for r in runs} == {f"zoo:{name}" for name in zoo_names()}
    found = client.get("/api/runs/zoo:capsnet").json()
    assert found["image"] == [1, 28, 28] and found["classes"] == list("0123456789")
    assert found["record"]["commit"] and found["record"]["command"] == "torchcaps train zoo/capsnet"
    assert {"encode", "decode", "trace"} <= set(found["questions"])
    assert found["passes"] == [3]


@pytest.mark.parametrize("name", zoo_names())
def test_answers_are_those_of_the_library(name, client):
    model = torchcaps.load(f"zoo:{name}").requires_grad_(False)
    known = about(model)
    for question in set(known["questions"]) - {"steps"}:
        torch.manual_seed(1)
        shapes = QUESTIONS[question].takes(model)
        tensors = {n: torch.rand([3 if k is None else k for k in s]) for n, s in shapes.items()}
        answer = ask(client, question, tensors, f"zoo:{name}")
        assert answer.status_code == 200, answer.text
        with torch.no_grad():
            wanted = QUESTIONS[question].answer(model, tensors)
        found = load(answer.content)
        assert set(found) == set(wanted)
        for key, tensor in wanted.items():
            assert torch.allclose(found[key].float(), tensor.float(), atol=1e-5), (question, key)


def test_edges_are_shares_that_the_forward_has(client):
    model, x = torchcaps.load("zoo:capsnet"), image()
    found = load(ask(client, "trace", {"image": x}).content)
    with torch.no_grad():
        output = model.encode(x[None], coupling=True)
    strength = output.primary[0].norm(dim=-1).flatten()
    for child, parent, weight in found["1.3.edges"].tolist():
        share = output.coupling[0, int(child), int(parent)] * strength[int(child)]
        assert abs(float(share) - weight) < 1e-5
    assert found["1.3.edges"].shape == (64, 3)


def test_images_are_those_of_the_test_split(client):
    found = load(client.get("/api/runs/zoo:capsnet/images?start=30&n=5").content)
    split = torchcaps.data.load("digits").test
    assert torch.equal(found["images"], split.images[30:35].reshape(found["images"].shape))
    assert found["labels"].tolist() == split.labels[30:35].tolist()
    assert int(found["count"]) == len(split)
    assert not len(load(client.get("/api/runs/zoo:capsnet/images?start=9999").content)["labels"])


@pytest.mark.parametrize(
    "headers, status",
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "localhost:1"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
    ],
)
def test_other_sites_are_turned_away(headers, status, client):
    answer = client.get("/api/runs", headers=headers)
    assert answer.status_code == status and set(answer.json()) == {"error", "code"}


def test_a_form_of_another_site_can_ask_nothing(served):
    answer = httpx.post(f"http://{served}/api/jobs?run=zoo:capsnet&transformation=rotation")
    assert answer.status_code == 403


def test_every_answer_forbids_the_rest(client):
    for path in ("/", "/api/runs", "/nowhere", "/main.js"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe-inline" not in policy
        assert "access-control-allow-origin" not in headers
    assert client.get("/main.js").headers["content-type"].startswith("text/javascript")


@pytest.mark.parametrize(
    "path", ["/../server.py", "/%2e%2e/server.py", "/static/../x", "/etc/passwd"]
)
def test_no_other_file_is_served(path, client):
    assert client.get(path).status_code == 404
    assert all(".." not in name for name in static_files())


def png(width, height):
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(bytes((width + 1) * 64), 9)
    chunks = ((b"IHDR", head), (b"IDAT", rows), (b"IEND", b""))
    parts = (
        struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def test_a_picture_becomes_what_the_model_takes(client):
    buffer = io.BytesIO()
    Image.fromarray(np.full((40, 60, 3), 200, np.uint8)).save(buffer, "JPEG")
    answer = client.post("/api/runs/zoo:capsnet/image", content=buffer.getvalue())
    found = load(answer.content)["image"]
    assert found.shape == (1, 28, 28) and abs(float(found.mean()) - 200 / 255) < 0.02


@pytest.mark.parametrize(
    "content", [b"", b"text", png(20_000, 20_000), png(5_000, 5_000), png(9_000, 1), b"%!PS-Adobe"]
)
def test_pictures_that_are_bombs(content, client):
    answer = client.post("/api/runs/zoo:capsnet/image", content=content)
    assert answer.status_code == 422 and "not an image" in answer.json()["error"]


def test_bodies_are_bounded(client):
    large = bytes(5 * 2**20)
    assert client.post("/api/runs/zoo:capsnet/encode", content=large).status_code == 413

    def parts():
        for _ in range(80):
            yield bytes(2**16)

    assert client.post("/api/runs/zoo:capsnet/encode", content=parts()).status_code == 413


WRONG = {
    "nothing": b"",
    "no file": b"x" * 100,
    "another name": save({"picture": image()}),
    "one more": save({"image": image(), "more": image()}),
    "another shape": save({"image": torch.rand(1, 28, 29)}),
    "no channels": save({"image": torch.rand(28, 28)}),
    "whole numbers": save({"image": torch.zeros(1, 28, 28, dtype=torch.uint8)}),
    "doubles": save({"image": image().double()}),
    "not finite": save({"image": image() / 0}),
    "a head that lies": struct.pack("<Q", 2**40) + b"{}",
    "a head without end": struct.pack("<Q", 10**6) + b"[" * 10**6,
}


@pytest.mark.parametrize("name", WRONG)
def test_bodies_that_are_almost_right(name, client):
    answer = client.post("/api/runs/zoo:capsnet/encode", content=WRONG[name])
    assert answer.status_code == 422 and answer.json()["code"] == "wrong", answer.text


def test_what_a_model_lacks_is_said(client):
    answer = ask(client, "decode", {"image": image()}, "zoo:convnet-avg")
    assert answer.status_code == 422 and "draws nothing" in answer.json()["error"]
    assert ask(client, "encode", {"image": image()}, "zoo:nobody").status_code == 404
    assert ask(client, "nonsense", {"image": image()}).status_code == 404


def test_too_many_at_once_are_told_to_wait(served):
    """Of more requests than may wait some are refused, and none is lost."""

    body = save({"image": image()})

    def post(_):
        url = f"http://{served}/api/runs/zoo:capsnet/trace"
        return httpx.post(url, content=body, headers=OWN, timeout=60).status_code

    with ThreadPoolExecutor(60) as pool:
        statuses = list(pool.map(post, range(120)))
    assert set(statuses) == {200, 503} and statuses.count(200) >= 16


def events(client, job):
    with client.stream("GET", f"/api/jobs/{job}") as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                yield json.loads(line[6:])


def test_a_curve_is_told_point_by_point_and_can_be_cancelled(client):
    begin = "/api/jobs?run=zoo:convnet-avg&transformation=scale"
    job = client.post(begin).json()["job"]
    told = list(events(client, job))
    assert told[-1]["state"] == "done" and len(told[-1]["x"]) == told[-1]["total"] == 7
    model, split = torchcaps.load("zoo:convnet-avg"), torchcaps.data.load("digits").test
    rows = torch.linspace(0, len(split) - 1, 200).long()
    with torch.no_grad():
        batch = split.batch(rows)
        right = (model.encode(batch.images).logits.argmax(1) == batch.labels).float().mean()
    assert told[-1]["y"][told[-1]["x"].index(1.0)] == pytest.approx(float(right))
    long = client.post("/api/jobs?run=zoo:convnet-avg&transformation=rotation").json()["job"]
    assert client.delete(f"/api/jobs/{long}").status_code == 200
    assert list(events(client, long))[-1]["state"] == "cancelled"
    assert client.get("/api/jobs/unknown").status_code == 404
    assert client.post("/api/jobs?run=zoo:capsnet&transformation=spin").status_code == 422
    assert client.post("/api/jobs?run=zoo:sparse&transformation=scale").status_code == 422


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([*QUESTIONS, "image", "images", "x"]),
    st.sampled_from([f"zoo:{n}" for n in zoo_names()] + ["..", "zoo:", "%00"]),
    st.one_of(
        st.binary(max_size=300),
        st.builds(
            lambda name, shape: save({name: torch.zeros(shape)}),
            st.sampled_from(["image", "poses", "label", "hidden"]),
            st.lists(st.integers(0, 30), max_size=4),
        ),
    ),
    st.sampled_from(["GET", "POST", "PUT", "DELETE", "OPTIONS"]),
)
def test_nothing_makes_it_stumble(client, question, run, body, method):
    answer = client.request(method, f"/api/runs/{run}/{question}", content=body)
    assert answer.status_code < 500, answer.text
