"""Which tests cover a line, and the tests of a mutant in a process of their own.

Processes are forked from one that has imported the libraries, so that a mutant costs no import of
torch. A mutant is never on disk: the child process imports its source in place of the module's.
"""

import ast
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import resource
import select
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

MEMORY = 12 * 2**30
"""Bytes of data that the tests of a mutant may allocate."""
FORKING = threading.Lock()
"""filelock refuses a fork while another thread forks."""
OPTIONS = (
    "-o", "addopts=", "-q", "-m", "not slow", "-W", "ignore::pytest.PytestAssertRewriteWarning",
    "-p", "no:xdist", "-p", "no:cacheprovider", "-p", "no:schemathesis", "-p", "no:anyio",
)  # fmt: skip


def preload() -> None:
    """Import what the tests need besides torchcaps, once for all processes."""
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.setdefault("TRITON_INTERPRET", "1")
    for name in ("hypothesis", "lightning_fabric", "matplotlib.pyplot", "mlxtend.data",
                 "platformdirs", "pytest", "requests", "rich.table", "safetensors.torch",
                 "scipy.optimize", "sklearn.svm", "sklearn.cluster", "sklearn.linear_model",
                 "torch", "torchmetrics.functional.classification", "tyro"):  # fmt: skip
        with suppress(ImportError):
            importlib.import_module(name)
    import torch

    torch.set_num_threads(1)


def child(work: Callable[[], Any]) -> tuple[int, int]:
    """Run work in a forked process. -> its id, the end of a pipe with its result as JSON"""
    reader, writer = os.pipe()
    with FORKING:
        process = os.fork()
    if process:
        os.close(writer)
        return process, reader
    os.close(reader)
    try:
        os.setpgid(0, 0)
        answer = json.dumps(work())
        with os.fdopen(writer, "w") as pipe:
            pipe.write(answer)
        os._exit(0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.__stderr__, flush=True)
        os._exit(70)


def finished(process: int, reader: int, limit: float) -> Any:
    """The result of a child, or None if it died or took too long."""
    end = time.monotonic() + limit
    chunks = []
    while (left := end - time.monotonic()) > 0:
        if select.select([reader], [], [], min(left, 1.0))[0]:
            chunk = os.read(reader, 1 << 20)
            if not chunk:
                break
            chunks.append(chunk)
    os.close(reader)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)  # and what the tests left running
    os.waitpid(process, 0)
    return json.loads(b"".join(chunks)) if chunks else None


def forked(
    work: Callable[[Any], Any], items: Iterable[Any], jobs: int, deadline: float
) -> Iterator[Any]:
    """Results of work on items by so many threads, each with a child process at a time."""
    from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

    rest, running = iter(items), set()
    with ThreadPoolExecutor(jobs) as pool:
        while True:
            while len(running) < jobs and time.monotonic() < deadline:
                item = next(rest, None)
                if item is None:
                    break
                running.add(pool.submit(work, item))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)


class Mutated(importlib.machinery.SourceFileLoader):
    """Import a module from a changed source."""

    def __init__(self, name: str, path: str, source: str):
        super().__init__(name, path)
        self.source = source

    def get_code(self, fullname: str) -> Any:
        return compile(self.source, self.path, "exec", dont_inherit=True)


class Finder(importlib.abc.MetaPathFinder):
    """Find one module in its changed form."""

    def __init__(self, module: str, source: str):
        self.module, self.source = module, source

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != self.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert spec is not None and spec.origin is not None
        spec.loader = Mutated(fullname, spec.origin, self.source)
        return spec


class Recorder:
    """Time of every test that passes, and the first that fails; tells coverage which one runs."""

    def __init__(self, coverage: Any = None):
        self.coverage, self.failed = coverage, ""
        self.seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_protocol(self, item: Any) -> None:
        if self.coverage is not None:
            self.coverage.switch_context(item.nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed = self.failed or report.nodeid
            self.seconds[report.nodeid] = float("nan")

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid


def pytest_quietly(words: Iterable[str], recorder: Recorder) -> int:
    """Run pytest in this process without a word. Returns its exit code."""
    import pytest

    nothing, kept = os.open(os.devnull, os.O_WRONLY), [os.dup(1), os.dup(2)]
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    try:
        return int(pytest.main([*OPTIONS, *words], plugins=[recorder]))
    finally:
        os.dup2(kept[0], 1)
        os.dup2(kept[1], 2)


def run_tests(tests: list[str], module: str, source: str, limit: float) -> tuple[int | None, str]:
    """Run tests with a changed module, up to the first failure.

    -> pytest's exit code, None if they took too long or died; the test that failed
    """

    def work() -> tuple[int, str]:
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        sys.meta_path.insert(0, Finder(module, source))
        recorder = Recorder()
        return pytest_quietly(["-x", *tests], recorder), recorder.failed

    ended, failed = finished(*child(work), limit) or (None, "")
    return ended, failed


@cache
def statements(path: Path) -> list[tuple[int, int]]:
    """First and last line of each statement; of one with a body, those before its body."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno
            found.append((node.lineno, max(node.lineno, last or 0)))
    return found


class Coverage:
    """The tests that cover a line, collected once for each state of the code and the test file."""

    def __init__(
        self, root: Path, files: list[Path], tests: list[Path], jobs: int, deadline: float
    ):
        self.root, self.folder = root, root / "build/mutants"
        self.folder.mkdir(parents=True, exist_ok=True)
        code = hashlib.sha256()
        for path in (*sorted((root / "torchcaps").rglob("*.py")), *root.glob("tests/conftest.py")):
            code.update(path.read_bytes())
        self.code, self.files = code.hexdigest(), files
        self.lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        self.seconds: dict[str, float] = {}
        for found in forked(self._of, tests, jobs, deadline):
            self.add(found)

    def _of(self, test: Path) -> dict[str, Any]:
        """Coverage of one test file, from the cache or collected in a child process."""
        key = hashlib.sha256(f"{self.code} {test}".encode() + test.read_bytes()).hexdigest()[:16]
        cached = self.folder / f"{test.stem}-{key}.json"
        if not cached.exists():
            found = finished(*child(lambda: self._collect(test)), 3600)
            if found is None:
                print(f"{test}: no coverage", file=sys.stderr)
                return {"seconds": {}, "lines": {}}
            print(f"coverage of {test.relative_to(self.root)}", flush=True)
            cached.write_text(json.dumps(found))
        return json.loads(cached.read_text())

    def _collect(self, test: Path) -> dict[str, Any]:
        import coverage

        tracer = coverage.Coverage(data_file=None, include=[str(f) for f in self.files])
        recorder = Recorder(tracer)
        tracer.start()
        pytest_quietly([str(test)], recorder)
        tracer.stop()
        data = tracer.get_data()
        lines = {
            Path(file).relative_to(self.root).as_posix(): {
                line: [c for c in contexts if c] for line, contexts in
                data.contexts_by_lineno(file).items()
            }
            for file in data.measured_files()
        }  # fmt: skip
        passed = {name: s for name, s in recorder.seconds.items() if s == s}
        return {"seconds": passed, "lines": lines}

    def add(self, found: dict[str, Any]) -> None:
        """Add the coverage of a test file."""
        self.seconds |= found["seconds"]
        for file, lines in found["lines"].items():
            for line, tests in lines.items():
                self.lines[file][int(line)] |= {t for t in tests if t in found["seconds"]}

    def tests(self, file: str, line: int) -> dict[str, float]:
        """Seconds of each test that runs the statement of a line; for one that runs at import,
        each that runs any line of the file, and those of the module's own test file.
        """
        spans = [s for s in statements(self.root / file) if s[0] <= line <= s[1]]
        first, last = max(spans, default=(line, line))
        known = self.lines[file]
        names = set().union(*(known[n] for n in range(first, last + 1) if n in known))
        if not names and any(n in known for n in range(first, last + 1)):
            own = file.replace("torchcaps/", "tests/", 1).rpartition("/")
            mirror = f"{own[0]}/test_{own[2]}::"  # its tests may read a constant alone
            names = set().union(*known.values(), (t for t in self.seconds if t.startswith(mirror)))
        return {name: self.seconds[name] for name in names}
