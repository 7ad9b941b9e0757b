"""Damaged files for every reader, in a process of its own that is watched: python -m
tests.attack.fuzz FOLDER COUNT SEED prints what came of them as JSON.

What the process does meanwhile is watched; an alarm ends a reader that takes too long.
"""

import collections
import json
import random
import resource
import shutil
import signal
import struct
import sys
import traceback
from pathlib import Path

from tests.attack.readers import READERS, Reader
from tests.attack.watch import Watch
from torchcaps.errors import TorchcapsError

SECONDS = 10
NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
# fmt: off
VALUES = (None, True, -1, 0, 1e300, float("nan"), 10**400, "", "x", "../../../up", "/abs", "\0",
          "é", [], {}, [1], {"a": 1}, [[[[]]]], "y" * 5000, [0] * 2000, 2**63, -(2**31))
# fmt: on


class TooLong(BaseException):
    """Not an Exception: no reader may take it for a broken file."""


def damaged(content: bytes, chance: random.Random) -> bytes:
    """One of the ways in which files go wrong, or are made to."""
    data, kind = bytearray(content), chance.randrange(7)
    at = chance.randrange(min(len(data), chance.choice((16, 200, len(data)))) or 1)
    if kind == 0:
        return bytes(data[: chance.randrange(len(data) + 1)])
    if kind == 1:
        return chance.randbytes(chance.randrange(300))
    if kind == 2:  # a number that counts, or claims a size
        order = chance.choice("<>") + chance.choice("IHQ")
        number = chance.choice(NUMBERS) % 2 ** (8 * struct.calcsize(order))
        packed = struct.pack(order, number)
        data[at : at + len(packed)] = packed
    elif kind == 3:
        data[at:at] = chance.randbytes(chance.randrange(1, 9))
    elif kind == 4:
        end = min(len(data), at + chance.randrange(1, 64))
        data[end:end] = data[at:end] * chance.randrange(1, 40)
    elif kind == 5 and data[:1] in (b"{", b"["):
        return _other_value(bytes(data), chance)
    else:
        for _ in range(chance.randrange(1, 9)):
            data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


def _other_value(data: bytes, chance: random.Random) -> bytes:
    """JSON with a value of another kind in one of its places, or a value gone."""
    texts = data.decode().splitlines() if data.count(b"\n{") else [data.decode()]
    row = chance.randrange(len(texts))
    whole = [json.loads(texts[row])]
    group, key = whole, 0
    while isinstance(group[key], (dict, list)) and group[key] and chance.random() < 0.8:
        group = group[key]
        key = chance.choice(list(group) if isinstance(group, dict) else range(len(group)))
    if chance.random() < 0.2 and isinstance(group, dict):
        del group[key]
    else:
        group[key] = chance.choice(VALUES)
    texts[row] = json.dumps(whole[0]) if whole else ""
    if chance.random() < 0.05:
        texts[row] = '{"a":' * 50_000
    return "\n".join(texts).encode() + b"\n"


def tried(reader: Reader, path: Path) -> str:
    """read, refused, or what went wrong."""

    def over(*_):
        raise TooLong

    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        reader.read(path)
        return "read"
    except TorchcapsError as error:
        return "refused" if 0 < len(str(error)) < 20_000 else "said too much or nothing"
    except TooLong:
        return f"took more than {SECONDS} s"
    except BaseException:
        return "raw: " + traceback.format_exc(limit=-3)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def main(folder: Path, count: int, seed: int) -> dict:
    """So many damaged files, the readers in turn, each with a good copy of its folder."""
    folder = folder.resolve()
    good, here = folder / "good", folder / "here"
    for name, reader in READERS.items():
        (good / name).mkdir(parents=True)
        reader.write(good / name)
        shutil.rmtree(here, ignore_errors=True)
        shutil.copytree(good / name, here)
        reader.read(here / reader.file)  # the good file is read, and all that is imported late is
    watch, chance = Watch(folder), random.Random(seed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes: dict[str, collections.Counter] = {n: collections.Counter() for n in READERS}
    faults = []
    for number in range(count):
        name = list(READERS)[number % len(READERS)]
        reader = READERS[name]
        shutil.rmtree(here, ignore_errors=True)
        shutil.copytree(good / name, here)
        path = here / reader.file
        content = damaged(path.read_bytes(), chance)
        path.write_bytes(content)
        watch.on = True
        outcome = tried(reader, path)
        watch.on = False
        outcomes[name][outcome.split(":")[0]] += 1
        if outcome not in ("read", "refused"):
            faults.append(f"{name}, file {number}: {outcome}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"outcomes": outcomes, "faults": faults, "seen": watch.seen, "memory_mb": peak / 1024}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
