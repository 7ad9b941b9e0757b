"""The explorer under load, on this machine alone: requests a second, delays, idle pages, memory.

    python benchmarks/explorer.py [--seconds 600]

One server with the full CapsNet (untrained: the work is the same) and the zoo; clients are threads
of another process, on the same cores. Where Chromium is there, an image is dragged in it too, with
two models on the page: how long each answer takes from the asking to its last byte, and how long
from a move of the pointer until the bars are drawn. Every loop is bounded in count and time.
"""

import json
import math
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import httpx
import torch
import tyro
from safetensors.torch import save

import torchcaps

OWN = {"X-Torchcaps": "1"}
IMAGE = save({"image": torch.rand(1, 28, 28)})
SERVER = """
import sys
from pathlib import Path
from rich.console import Console
from torchcaps.explorer.serve import _bound
from torchcaps.explorer.server import serve
from torchcaps.explorer.shelf import Book, Shelf
from torchcaps.training.recipe import DataSpec
shelf = Shelf([])
record = next(iter(shelf.books.values())).record
shelf.books["full"] = Book("full", "CapsNet", sys.argv[1], record, DataSpec(name="digits"))
sock = _bound(0, Console())
print(sock.getsockname()[1], flush=True)
serve(shelf, sock, "benchmark")
"""


def memory(process: "subprocess.Popen[str]") -> float:
    """Resident megabytes."""
    pages = Path(f"/proc/{process.pid}/statm").read_text().split()[1]
    return int(pages) * 4096 / 1e6


def rate(client: httpx.Client, run: str, seconds: float, threads: int) -> tuple[float, list[float]]:
    """Encode-and-draw requests a second, and how long each took in milliseconds."""
    until, times = time.monotonic() + seconds, []

    def ask(_: int) -> None:
        while time.monotonic() < until:
            began = time.perf_counter()
            answer = client.post(f"/api/runs/{run}/encode", content=IMAGE)
            answer.raise_for_status()
            times.append(1000 * (time.perf_counter() - began))

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(ask, range(threads)))
    return len(times) / seconds, times


def p95(times: list[float]) -> float:
    return statistics.quantiles(times, n=20)[-1]


def main(
    seconds: Annotated[int, tyro.conf.arg(help="How long memory is watched.")] = 60,
) -> None:
    """Print one JSON object a row."""
    with tempfile.TemporaryDirectory() as folder:
        torchcaps.create_model("capsnet").save_pretrained(folder)
        words = [sys.executable, "-c", SERVER, folder]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            metric(process, int(process.stdout.readline()), seconds)
        finally:
            process.terminate()
            process.wait(10)


def metric(process: "subprocess.Popen[str]", port: int, seconds: int) -> None:
    limits = httpx.Limits(max_connections=32)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}/benchmark", headers=OWN, limits=limits,
                      timeout=60) as client:  # fmt: skip
        for run in ("full", "capsnet-small.digits"):
            rate(client, run, 2, 2)
        for run, threads in (
            ("full", 2),
            ("full", 4),
            ("capsnet-small.digits", 1),
            ("capsnet-small.digits", 2),
        ):
            count, times = rate(client, run, 8, threads)
            say(
                what=f"encode and draw, {run}", clients=threads, per_second=round(count, 1),
                median_ms=round(statistics.median(times), 1), p95_ms=round(p95(times), 1),
            )  # fmt: skip
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
        count, times = rate(client, "capsnet-small.digits", 4, 1)
        say(what="beside 200 idle pages", median_ms=round(statistics.median(times), 1),
            p95_ms=round(p95(times), 1))  # fmt: skip
        for one in idle:
            one.close()
        dragged(port)
        watched, stop = [memory(process)], threading.Event()

        def watch() -> None:
            while not stop.wait(max(1.0, seconds / 20)):
                watched.append(memory(process))

        watcher = threading.Thread(target=watch)
        watcher.start()
        rate(client, "capsnet-small.digits", seconds, 1)
        stop.set()
        watcher.join()
        third = max(1, len(watched) // 3)
        say(what=f"memory over {seconds} s of requests", first_mb=round(watched[third]),
            last_mb=round(watched[-1]))  # fmt: skip


DRAG = """() => {
  window.delays = [];
  let moved = 0;
  document.getElementById("image").addEventListener("pointermove", () => { moved ||= performance.now(); });
  const panel = document.querySelector("[data-panel=classes]");
  new MutationObserver(() => { if (moved) { delays.push(performance.now() - moved); moved = 0; } })
    .observe(panel, { attributes: true, attributeFilter: ["data-ready"] });
  performance.clearResourceTimings();
}"""  # noqa: E501


def dragged(port: int) -> None:
    """An image turned by hand in Chromium, 120 moves of the pointer in about four seconds."""
    chromium = shutil.which("chromium")
    if chromium is None:
        return say(what="dragging in a browser", skipped="there is no Chromium here")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_context(reduced_motion="reduce").new_page()
        page.goto(
            f"http://127.0.0.1:{port}/benchmark/#v=1&a=capsnet-small.digits&b=convnet-avg-small.digits"
        )
        page.wait_for_selector("[data-panel=classes][data-ready]")
        page.wait_for_timeout(3000)
        page.evaluate(DRAG)
        box = page.locator("#image").bounding_box()
        assert box is not None
        middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(middle[0] + 100, middle[1])
        page.mouse.down()
        for step in range(120):
            angle = 3 * math.radians(step)
            page.mouse.move(middle[0] + 100 * math.cos(angle), middle[1] - 100 * math.sin(angle))
            page.wait_for_timeout(30)
        page.mouse.up()
        page.wait_for_timeout(500)
        answers = page.evaluate(
            "performance.getEntriesByType('resource').filter((e) => e.name.endsWith('/encode'))"
            ".map((e) => e.duration)"
        )
        drawn = page.evaluate("window.delays")
        browser.close()
    for what, times in (("answers", answers), ("until drawn", drawn)):
        say(what=f"dragging in a browser, {what}", count=len(times),
            median_ms=round(statistics.median(times), 1), p95_ms=round(p95(times), 1))  # fmt: skip


def say(**row: object) -> None:
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    tyro.cli(main)
