"""The explorer's server: correct answers, limits, and access from this machine only."""

import io
import json
import socket
import struct
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load, save

import torchcaps
from torchcaps.analysis.nearest import TrainingPoses
from torchcaps.errors import TorchcapsError
from torchcaps.explorer.files import static_files
from torchcaps.explorer.questions import QUESTIONS, about
from torchcaps.explorer.shelf import Computing, Shelf
from torchcaps.models.hub import pretrained_names

OWN = {"X-Torchcaps": "1"}


@pytest.fixture(scope="module")
def client(served):
    with httpx.Client(base_url=f"http://{served}", headers=OWN, timeout=60) as client:
        yield client


def image(seed=0):
    return torch.rand(1, 28, 28, generator=torch.Generator().manual_seed(seed))


def ask(client, question, tensors, run="capsnet-small.digits"):
    return client.post(f"/api/runs/{run}/{question}", content=save(tensors))


def test_runs_list_their_questions(client):
    runs = client.get("/api/runs").json()
    assert {r["id"] for r in runs} == set(pretrained_names())
    found = client.get("/api/runs/capsnet-small.digits").json()
    assert found["image"] == [1, 28, 28] and found["classes"] == list("0123456789")
    assert found["record"]["commit"] and found["record"]["command"] == "torchcaps train zoo/capsnet"
    assert {"encode", "decode", "trace"} <= set(found["questions"])
    assert found["passes"] == [3]


@pytest.mark.parametrize("name", pretrained_names())
def test_answers_match_the_library(name, client):
    model = torchcaps.load(name).requires_grad_(False)
    known = about(model)
    for question in set(known["questions"]) - {"steps"}:
        torch.manual_seed(1)
        shapes = QUESTIONS[question].input_shapes(model)
        tensors = {n: torch.rand([3 if k is None else k for k in s]) for n, s in shapes.items()}
        answer = ask(client, question, tensors, name)
        assert answer.status_code == 200, answer.text
        with torch.no_grad():
            expected = QUESTIONS[question].answer(model, tensors)
        found = load(answer.content)
        assert set(found) == set(expected)
        for key, tensor in expected.items():
            assert torch.allclose(found[key].float(), tensor.float(), atol=1e-5), (question, key)


def test_edges_match_the_coupling(client):
    model, x = torchcaps.load("capsnet-small.digits"), image()
    found = load(ask(client, "trace", {"image": x}).content)
    with torch.no_grad():
        output = model.encode(x[None], coupling=True)
    strength = output.primary[0].norm(dim=-1).flatten()
    for child, parent, weight in found["1.3.edges"].tolist():
        share = output.coupling[0, int(child), int(parent)] * strength[int(child)]
        assert abs(float(share) - weight) < 1e-5
    assert found["1.3.edges"].shape == (64, 3)


def test_nearest_training_images(client):
    data = torchcaps.data.load("digits")
    model, x = torchcaps.load("capsnet-small.digits"), data.test.batch(slice(3, 4)).images
    answer = load(ask(client, "nearest", {"image": x[0]}).content)
    poses = TrainingPoses(model, data)
    expected = poses.nearest(x, len(answer["labels"]))
    assert answer["predicted"].tolist() == expected.predicted.tolist()
    assert torch.allclose(answer["similarity"], expected.similarity[0], atol=1e-5)
    assert answer["labels"].tolist() == poses.split.labels[expected.rows[0]].tolist()
    assert torch.equal(answer["images"], poses.split.images[expected.rows[0]])
    refused = ask(client, "nearest", {"image": x[0]}, "convnet-avg-small.digits")
    assert refused.status_code == 422 and "no class capsules" in refused.json()["error"]
    about = client.get("/api/runs/convnet-avg-small.digits").json()
    assert about["lacks"]["nearest"] == "It has no class capsules with poses"


def test_nearest_images_wait_for_poses_that_another_request_computes(tmp_path):
    shelf = Shelf(["capsnet-small.digits"], bundled=False)
    with shelf._posing, pytest.raises(Computing):
        shelf.nearest("capsnet-small.digits", image())
    assert len(shelf.nearest("capsnet-small.digits", image())["labels"]) == 8
    torchcaps.load("capsnet-small.digits").save_pretrained(tmp_path / "saved")
    saved = Shelf([tmp_path / "saved"], bundled=False)
    with pytest.raises(TorchcapsError, match="without its training images"):
        saved.nearest("saved", image())


def test_nearest_images_that_are_not_ready_are_no_error(client, monkeypatch):
    def computing(*_):
        raise Computing

    monkeypatch.setattr(Shelf, "nearest", computing)
    answer = ask(client, "nearest", {"image": image()})
    assert answer.status_code == 202 and answer.headers["retry-after"] == "1"


def test_images_are_those_of_the_test_split(client):
    found = load(client.get("/api/runs/capsnet-small.digits/images?start=30&n=5").content)
    split = torchcaps.data.load("digits").test
    assert torch.equal(found["images"], split.images[30:35].reshape(found["images"].shape))
    assert found["labels"].tolist() == split.labels[30:35].tolist()
    assert int(found["count"]) == len(split)
    assert not len(
        load(client.get("/api/runs/capsnet-small.digits/images?start=9999").content)["labels"]
    )


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
def test_other_sites_are_rejected(headers, status, client):
    answer = client.get("/api/runs", headers=headers)
    assert answer.status_code == status and set(answer.json()) == {"error", "code"}


@pytest.mark.parametrize("path", ["/", "/main.js", "/api/runs", "/wrong/api/runs", "//api/runs"])
def test_requests_without_the_token_are_rejected(path, served):
    host, _, token = served.partition("/")
    answer = httpx.get(f"http://{host}{path}", headers=OWN)
    assert answer.status_code == 403 and answer.json()["code"] == "token"
    assert httpx.get(f"http://{host}/{token}{path.removeprefix('/wrong')}").status_code in (
        200,
        404,
    )


def test_every_start_has_a_token_of_its_own(monkeypatch, capsys):
    from torchcaps.explorer import serve, server

    seen = []
    monkeypatch.setattr(server, "serve", lambda shelf, sock, token, rows: seen.append(token))
    for _ in range(2):
        serve.explore_models(["convnet-avg-small.digits"], 0, False, "digits")
    printed = capsys.readouterr().out
    assert len(set(seen)) == 2 and all(len(token) > 20 for token in seen)
    assert all(f"/{token}/" in "".join(printed.split()) for token in seen)


def half_posts(served, count, end):
    """Sockets that have sent a part of a request each."""
    host, _, token = served.partition("/")
    name, port = host.split(":")
    head = f"POST /{token}/api/runs/capsnet-small.digits/encode HTTP/1.1\r\nHost: {host}\r\n"
    head += "X-Torchcaps: 1\r\nContent-Length: 3000\r\n"
    for _ in range(count):
        one = socket.create_connection((name, int(port)))
        one.sendall((head + end).encode())
        yield one


def received(one):
    """What the server sent before it closed the connection, in either of the two ways."""
    one.settimeout(5)
    try:
        return one.recv(4096)
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize("end", ["\r\nxyz", ""], ids=["half a body", "half the headers"])
def test_half_requests_hold_nobody_up(end, served):
    """300 requests that never end: the server answers others at once and closes the oldest."""
    with ExitStack() as stack:
        held = [stack.enter_context(one) for one in half_posts(served, 300, end)]
        time.sleep(0.3)
        for _ in range(3):
            began = time.monotonic()
            answer = httpx.post(
                f"http://{served}/api/runs/capsnet-small.digits/encode",
                content=save({"image": image()}), headers=OWN, timeout=10,
            )  # fmt: skip
            assert answer.status_code == 200 and time.monotonic() - began < 5
        first = received(held[0])
        assert b"408" in first if "xyz" in end else first == b""


def test_a_body_has_a_time_limit(served, monkeypatch):
    monkeypatch.setattr("torchcaps.explorer.guard.BODY_SECONDS", 0.2)
    (one,) = half_posts(served, 1, "\r\nxyz")
    with one:
        assert b"408 Request Timeout" in received(one)


def test_connections_without_a_request_have_a_time_limit(served, monkeypatch):
    monkeypatch.setattr("torchcaps.explorer.connection.HEAD_SECONDS", 0.2)
    (one,) = half_posts(served, 1, "")
    with one:
        assert received(one) == b""


def test_poses_that_overflow_in_the_decoder_are_rejected(client):
    shape = about(torchcaps.load("capsnet-small.digits"))["capsules"]
    tensors = {"poses": torch.full((1, *shape), 3e38), "label": torch.zeros(1)}
    answer = ask(client, "decode", tensors)
    assert answer.status_code == 422 and "not finite" in answer.json()["error"]


def test_forms_of_other_sites_are_rejected(served):
    answer = httpx.post(
        f"http://{served}/api/jobs?run=capsnet-small.digits&transformation=rotation"
    )
    assert answer.status_code == 403


def test_every_answer_has_security_headers(client):
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
    expected = 403 if path == "/../server.py" else 404  # it leaves the token's folder
    assert client.get(path).status_code == expected
    assert all(".." not in name for name in static_files())


def png(width, height):
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(bytes((width + 1) * 64), 9)
    chunks = ((b"IHDR", head), (b"IDAT", rows), (b"IEND", b""))
    parts = (
        struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def test_uploaded_images_are_scaled(client):
    buffer = io.BytesIO()
    Image.fromarray(np.full((40, 60, 3), 200, np.uint8)).save(buffer, "JPEG")
    answer = client.post("/api/runs/capsnet-small.digits/image", content=buffer.getvalue())
    found = load(answer.content)["image"]
    assert found.shape == (1, 28, 28) and abs(float(found.mean()) - 200 / 255) < 0.02


@pytest.mark.parametrize(
    "content", [b"", b"text", png(20_000, 20_000), png(5_000, 5_000), png(9_000, 1), b"%!PS-Adobe"]
)
def test_malicious_images_are_rejected(content, client):
    answer = client.post("/api/runs/capsnet-small.digits/image", content=content)
    assert answer.status_code == 422 and "not an image" in answer.json()["error"]


def test_bodies_are_bounded(client):
    large = bytes(5 * 2**20)
    assert client.post("/api/runs/capsnet-small.digits/encode", content=large).status_code == 413

    def parts():
        for _ in range(80):
            yield bytes(2**16)

    assert client.post("/api/runs/capsnet-small.digits/encode", content=parts()).status_code == 413


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
def test_wrong_tensors_are_rejected(name, client):
    answer = client.post("/api/runs/capsnet-small.digits/encode", content=WRONG[name])
    assert answer.status_code == 422 and answer.json()["code"] == "wrong", answer.text


def test_unsupported_questions_are_rejected(client):
    answer = ask(client, "decode", {"image": image()}, "convnet-avg-small.digits")
    assert answer.status_code == 422 and "no decoder" in answer.json()["error"]
    assert ask(client, "encode", {"image": image()}, "capsnet-small.nobody").status_code == 404
    assert ask(client, "nonsense", {"image": image()}).status_code == 404


def test_too_many_requests_are_refused(served):
    """Requests beyond the queue are refused, and every request gets an answer."""

    body = save({"image": image()})

    def post(_):
        url = f"http://{served}/api/runs/capsnet-small.digits/trace"
        return httpx.post(url, content=body, headers=OWN, timeout=60).status_code

    with ThreadPoolExecutor(60) as pool:
        statuses = list(pool.map(post, range(120)))
    assert set(statuses) == {200, 503} and statuses.count(200) >= 16


def events(client, job):
    with client.stream("GET", f"/api/jobs/{job}") as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                yield json.loads(line[6:])


def test_curves_are_streamed_and_can_be_cancelled(client):
    begin = "/api/jobs?run=convnet-avg-small.digits&transformation=scale"
    job = client.post(begin).json()["job"]
    statuses = list(events(client, job))
    assert statuses[-1]["state"] == "done" and len(statuses[-1]["x"]) == statuses[-1]["total"] == 7
    model, split = torchcaps.load("convnet-avg-small.digits"), torchcaps.data.load("digits").test
    rows = torch.linspace(0, len(split) - 1, 200).long()
    with torch.no_grad():
        batch = split.batch(rows)
        right = (model.encode(batch.images).logits.argmax(1) == batch.labels).float().mean()
    assert statuses[-1]["y"][statuses[-1]["x"].index(1.0)] == pytest.approx(float(right))
    long = client.post("/api/jobs?run=convnet-avg-small.digits&transformation=rotation").json()[
        "job"
    ]
    assert client.delete(f"/api/jobs/{long}").status_code == 200
    assert list(events(client, long))[-1]["state"] == "cancelled"
    assert client.get("/api/jobs/unknown").status_code == 404
    assert client.post("/api/jobs?run=capsnet-small.digits&transformation=spin").status_code == 422
    assert client.post("/api/jobs?run=sparse-small.digits&transformation=scale").status_code == 422


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([*QUESTIONS, "image", "images", "x"]),
    st.sampled_from([*pretrained_names(), "..", "capsnet-small.", "%00"]),
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
def test_random_requests_cause_no_server_error(client, question, run, body, method):
    answer = client.request(method, f"/api/runs/{run}/{question}", content=body)
    assert answer.status_code < 500, answer.text
