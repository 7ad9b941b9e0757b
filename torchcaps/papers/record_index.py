"""An index of the result lines of a file, so that appending to it takes constant time.

The lines are the truth; the index, an SQLite file beside them, can be deleted at any time. It knows
how many bytes of the lines it covers: what others appended since (a kill, `git pull`) is added, and
a file that changed before that point is indexed anew. Whoever uses it holds the file's lock.
"""

import hashlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

TAIL = 4096
"""Bytes at the end of the covered part that must be unchanged."""
Key = tuple[Any, ...]
Reader = Callable[[bytes], Iterable[Key]]
"""Reads the keys of some lines."""


def index_file(path: Path) -> Path:
    return path.with_name(f".{path.name}.index")


def known_keys(path: Path, wanted: list[Key], read: Reader) -> set[Key]:
    """Find the wanted keys among the lines of a file; brings the index up to date."""
    if not path.exists():
        index_file(path).unlink(missing_ok=True)
        return set()
    try:
        return _query(path, wanted, read)
    except sqlite3.Error:  # damaged, or by another version: made anew
        index_file(path).unlink(missing_ok=True)
        try:
            return _query(path, wanted, read)
        except sqlite3.Error as error:
            raise OSError(None, f"{index_file(path)}: {error}") from None


def _query(path: Path, wanted: list[Key], read: Reader) -> set[Key]:
    # nolock: the caller holds the lock, and SQLite's own do not work on every network file system
    uri = f"{index_file(path).absolute().as_uri()}?nolock=1"
    with closing(sqlite3.connect(uri, uri=True)) as database, database:
        database.execute("PRAGMA synchronous=OFF")  # after a crash the sizes tell
        database.execute("CREATE TABLE IF NOT EXISTS keys (key TEXT PRIMARY KEY) WITHOUT ROWID")
        database.execute("CREATE TABLE IF NOT EXISTS covered (size INTEGER, tail TEXT)")
        size, tail = database.execute("SELECT size, tail FROM covered").fetchone() or (0, "")
        whole = path.stat().st_size
        if size > whole or (size and tail != _tail(path, size)):
            database.execute("DELETE FROM keys")
            size = 0
        if size < whole:
            with path.open("rb") as file:
                file.seek(size)
                new = file.read()
            new = new[: new.rfind(b"\n") + 1]  # an incomplete last line may yet go
            texts = ((_text(key),) for key in read(new))
            database.executemany("INSERT OR IGNORE INTO keys VALUES (?)", texts)
            size += len(new)
            database.execute("DELETE FROM covered")
            database.execute("INSERT INTO covered VALUES (?, ?)", (size, _tail(path, size)))
        ask = "SELECT 1 FROM keys WHERE key = ?"
        return {key for key in wanted if database.execute(ask, (_text(key),)).fetchone()}


def _text(key: Key) -> str:
    return json.dumps(key)


def _tail(path: Path, size: int) -> str:
    """The sha256 of the last bytes of the covered part."""
    start = max(0, size - TAIL)
    with path.open("rb") as file:
        file.seek(start, os.SEEK_SET)
        return hashlib.sha256(file.read(size - start)).hexdigest()
