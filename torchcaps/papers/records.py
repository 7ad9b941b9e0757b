"""results/<paper>.jsonl: one line per result, written by the program alone.

Lines are never edited. A correction is an amendment: a line of its own, with its commit, date and
device, about the lines above it that it matches.

    {"kind": "note",      "match": {…}, "note": …}        a remark
    {"kind": "supersede", "match": {…}, "because": …}     the lines no longer count
    {"kind": "rename",    "match": {…}, "data": …}        the full name of the data set
    {"kind": "digests",   "digests": {recipe: […]}}       the recipes of lines without a digest
    {"kind": "move",      "match": {…}, "recipe": …}      the recipe and row that they belong to
"""

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torchcaps.errors import TorchcapsError, writing
from torchcaps.papers.record_index import known_keys

Line = dict[str, Any]
RESULTS = Path("results")
"""The folder of the recorded results."""
NEEDED = ("recipe", "seed", "protocol", "table", "row", "data", "split", "metric", "value", "date")
BLOCK = 2**16
"""Bytes that are read at once from the end of a file."""
RUN = ("recipe", "seed", "protocol", "date")
"""Fields that identify a run recorded before runs had an identity."""
PROBED = ("fit", "features", "how")
"""Fields that distinguish lines of a run with the same metric: how a probe was fitted."""
NOT_IN_LINES = ("recipe", "results", "weights_sha256", "files", "plugins", "initial")
"""Facts of a record that are not in its result lines."""
REQUIRED = {"note": ("note",), "supersede": ("because",), "rename": ("data",)}
"""Fields that an amendment must have."""


def results_file(paper: str, folder: Path) -> Path:
    if not re.fullmatch(r"[a-z0-9-]*", paper):
        raise TorchcapsError(
            f"{paper!r} is not a paper's short name: lower-case letters, digits, dashes."
        )
    return folder / f"{paper or 'other'}.jsonl"


def run_of(line: Line) -> tuple[Any, ...]:
    """The identity of a line's run."""
    return (line["run"],) if "run" in line else tuple(line[name] for name in RUN)


def parse_lines(path: Path) -> tuple[list[Line], list[str]]:
    """Every readable line, amendments included; and which are not, by file and number."""
    lines, problems = [], []
    for number, text in enumerate(_texts(path), 1):
        if not text.strip():
            continue
        line = _parsed(text)
        if line is not None and _known(line):
            lines.append(line)
        else:
            problems.append(f"{path}:{number}: skipping malformed line")
    return lines, problems


def _texts(path: Path) -> list[bytes]:
    try:
        if path.exists() and not path.is_file():
            raise TorchcapsError(f"{path}: not a plain file.")
        return path.read_bytes().split(b"\n") if path.exists() else []
    except OSError as error:
        raise TorchcapsError(f"{path}: cannot be read ({error.strerror}).") from None


def _parsed(text: bytes) -> Line | None:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):  # nested without end
        return None
    return line if isinstance(line, dict) else None


def _known(line: Line) -> bool:
    """True if a line is a result or an amendment, with all required fields."""
    if "kind" not in line:
        plain = all(isinstance(line.get(name), str | int | float) for name in NEEDED)
        plain = plain and isinstance(line["seed"], int) and not isinstance(line["value"], str)
        return plain and all(_scalar(line.get(name)) for name in ("run", *PROBED))
    if not isinstance(line.get("match", {}), dict) or not isinstance(line["kind"], str):
        return False
    if line["kind"] == "digests":
        pairs = line.get("digests")
        pairs = pairs.values() if isinstance(pairs, dict) else [None]
        return all(isinstance(pair, list) and len(pair) == 2 for pair in pairs)
    return all(isinstance(line.get(name), str) for name in REQUIRED.get(line["kind"], ()))


def _scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def read(path: Path) -> tuple[list[Line], list[str]]:
    """Result lines with their amendments applied, and the problems of reading.

    Superseded lines stay, with the reason under `superseded_by`.
    """
    lines, problems = parse_lines(path)
    measured: list[Line] = []
    for line in lines:
        kind = line.get("kind")
        if kind is None:
            measured.append(dict(line))
            continue
        for earlier in measured:
            if not _matches(earlier, line.get("match", {})):
                continue
            if kind == "note":
                earlier["note"] = "; ".join(filter(None, (earlier.get("note"), line["note"])))
            elif kind == "supersede":
                earlier["superseded_by"] = line["because"]
            elif kind == "rename":
                earlier["data"] = line["data"]
            elif kind == "move":
                moved = ("recipe", "table", "row", "digest")
                earlier |= {name: line[name] for name in moved if isinstance(line.get(name), str)}
            elif kind == "digests" and "digest" not in earlier:
                name = f"{earlier['recipe']} [{earlier['protocol']}]"
                if name in line["digests"]:
                    earlier["digest"], earlier["revision"] = line["digests"][name]
    return measured, problems


def newest(path: Path, fields: tuple[str, ...]) -> list[Line]:
    """The last line for each combination of these fields, in the order of writing."""
    last: dict[tuple[str, ...], Line] = {}
    for text in _texts(path):
        line = _parsed(text) if text.strip() else None
        if line is not None and fields[0] in line:
            last[tuple(str(line.get(name)) for name in fields)] = line
    return list(last.values())


def _matches(line: Line, wanted: dict[str, Any]) -> bool:
    return all(line.get(name) == value for name, value in wanted.items())


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock a file for one process; disk errors become messages."""
    from filelock import FileLock

    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(f".{path.name}.lock"), is_singleton=True):
            yield


def append(path: Path, lines: Iterable[Line]) -> None:
    """Append lines in one write, one process at a time.

    An incomplete last line that a kill left goes to a file beside this one.
    """
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    with _locked(path), path.open("ab", buffering=0) as file:
        _end_last_line(path)
        before = path.stat().st_size
        try:
            _write(file, text)
            os.fsync(file.fileno())
        except OSError:
            os.truncate(path, before)  # nothing is left in a buffer that could come after this
            raise


def _write(file: Any, data: bytes) -> None:
    """Write all of the data; a disk may take less at once."""
    while data:
        data = data[file.write(data) :]


def _end_last_line(path: Path) -> None:
    """Complete a last line without newline; move an incomplete one to a file beside this one."""
    if not path.exists():
        return
    whole, last = _last_line(path)
    if not last:
        return
    if _parsed(last) is not None:
        with path.open("ab", buffering=0) as file:
            _write(file, b"\n")
        return
    aside = path.with_suffix(".torn")
    with aside.open("ab", buffering=0) as file:
        before = aside.stat().st_size
        try:
            _write(file, last + b"\n")
            os.fsync(file.fileno())
        except OSError:
            os.truncate(aside, before)
            raise
    os.truncate(path, whole)


def _last_line(path: Path) -> tuple[int, bytes]:
    """Start of a last line without newline, and the line; reads from the end."""
    with path.open("rb") as file:
        start, last = file.seek(0, os.SEEK_END), b""
        while start:
            size = min(start, BLOCK)
            file.seek(start - size)
            block = file.read(size)
            begin = block.rfind(b"\n") + 1
            last, start = block[begin:] + last, start - size
            if begin:
                return start + begin, last
    return 0, last


def _key(line: Line) -> tuple[Any, ...]:
    probed = (line.get(name) for name in PROBED)
    return *run_of(line), line["data"], line["split"], line["metric"], *probed


def _keys(data: bytes) -> Iterator[tuple[Any, ...]]:
    """The keys of the result lines among some lines; malformed ones have no key."""
    for text in data.split(b"\n"):
        line = _parsed(text) if text.strip() else None
        if line is not None and "kind" not in line and _known(line):
            yield _key(line)


def append_record(record: dict[str, Any], folder: Path, note: str = "") -> str:
    """Append the lines of a record that the file does not have. -> what was done"""
    lines = _lines_of(record)
    path = results_file(lines[0]["paper"] if lines else "", folder)
    with _locked(path):  # of two that record one run the second finds its lines
        _end_last_line(path)
        known = known_keys(path, [_key(line) for line in lines], _keys)
        new = [x for key, x in {_key(x): x for x in lines}.items() if key not in known]
        if note and lines:
            provenance = {name: record[name] for name in ("command", "commit", "date", "device")}
            match = {"run": record["run"]} if "run" in record else {n: lines[0][n] for n in RUN}
            new.append({"kind": "note", "match": match, "note": note, **provenance})
        if not new:
            return f"already in {path}"
        append(path, new)
    return f"{len(new)} lines appended to {path}"


def _lines_of(record: dict[str, Any]) -> list[Line]:
    """A run's record as result lines; raises if it is damaged or has two values for a number."""
    facts = {k: v for k, v in record.items() if k not in NOT_IN_LINES}
    try:
        recipe = record["recipe"]
        shared = {name: recipe[name] for name in ("paper", "table", "row", "protocol", "seed")}
        lines = [{**shared, "recipe": recipe["name"], **r, **facts} for r in record["results"]]
        good = isinstance(shared["paper"], str) and all(map(_known, lines))
        good = good and all(_scalar(record[n]) for n in ("command", "commit", "date", "device"))
    except (KeyError, TypeError):
        good, lines = False, []
    if not good or any("kind" in line for line in lines):
        raise TorchcapsError("This record is damaged: its lines are not results of a run.")
    values: dict[tuple[Any, ...], str] = {}
    for line in lines:
        if values.setdefault(_key(line), repr(line["value"])) != repr(line["value"]):  # or NaN
            raise TorchcapsError(
                f"This record has two values of {line['metric']} on {line['data']}, "
                f"{line['split']}: {values[_key(line)]} and {line['value']}."
            )
    return lines


def amend(
    path: Path, kind: str, match: dict[str, Any], facts: dict[str, Any], where: dict[str, Any]
) -> int:
    """Append an amendment of the matching lines. -> how many match; none is an error"""
    matched = sum(_matches(line, match) for line in read(path)[0])
    if not matched:
        raise TorchcapsError(f"{path}: no line matches {match}.")
    append(path, [{"kind": kind, "match": match, **facts, **where}])
    return matched
