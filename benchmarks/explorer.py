"""The explorer under load, on this machine alone: requests a second, delays, idle pages, memory.

    python benchmarks/explorer.py [--seconds 600]

One server with the full CapsNet (untrained: the work is the same) and the zoo; clients are threads
of another process, on the same cores. Every loop is bounded in count and time.
"""

import json
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
from torchcaps.cli.exploring import _bound
from torchcaps.explorer.server import serve
from torchcaps.explorer.shelf import Book, Shelf
from torchcaps.train.recipe import DataSpec
shelf = Shelf([])
record = next(iter(shelf.books.values())).record
shelf.books["full"] = Book("full", "CapsNet", sys.argv[1], record, DataSpec("digits"))
sock = _bound(0)
print(sock.getsockname()[1], flush=True)
serve(shelf, sock)
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
            measure(process, int(process.stdout.readline()), seconds)
        finally:
            process.terminate()
            process.wait(10)


def measure(process: "subprocess.Popen[str]", port: int, seconds: int) -> None:
    limits = httpx.Limits(max_connections=32)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=OWN, limits=limits,
                      timeout=60) as client:  # fmt: skip
        for run in ("full", "zoo:capsnet"):
            rate(client, run, 2, 2)
        for run, threads in (("full", 2), ("full", 4), ("zoo:capsnet", 1), ("zoo:capsnet", 2)):
            count, times = rate(client, run, 8, threads)
            say(
                what=f"encode and draw, {run}", clients=threads, per_second=round(count, 1),
                median_ms=round(statistics.median(times), 1), p95_ms=round(p95(times), 1),
            )  # fmt: skip
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
        count, times = rate(client, "zoo:capsnet", 4, 1)
        say(what="beside 200 idle pages", median_ms=round(statistics.median(times), 1),
            p95_ms=round(p95(times), 1))  # fmt: skip
        for one in idle:
            one.close()
        watched, stop = [memory(process)], threading.Event()

        def watch() -> None:
            while not stop.wait(max(1.0, seconds / 20)):
                watched.append(memory(process))

        watcher = threading.Thread(target=watch)
        watcher.start()
        rate(client, "zoo:capsnet", seconds, 1)
        stop.set()
        watcher.join()
        third = max(1, len(watched) // 3)
        say(what=f"memory over {seconds} s of requests", first_mb=round(watched[third]),
            last_mb=round(watched[-1]))  # fmt: skip


def say(**row: object) -> None:
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    tyro.cli(main)
