"""Ten thousand damaged files over every reader: data or a sentence, and nothing else happens."""

import subprocess
import sys

from tests.attack import ATTACK, driven
from tests.attack.readers import READERS

FILES = 10_000 if ATTACK else 400
MEMORY = 1024
"""Megabytes beyond what the good files took."""


def test_damaged_files_are_data_or_a_sentence(tmp_path):
    """No raw exception, no hang, no memory to speak of, no program started, no connection made, and
    no byte written outside the folder.
    """
    found = driven("fuzz", tmp_path, FILES, 2)
    assert not found["faults"], "\n".join(found["faults"][:5])
    assert not found["seen"], found["seen"][:5]
    print(f"{FILES} files, {len(READERS)} readers, {found['memory_mb']:.0f} MB")
    assert found["memory_mb"] < MEMORY
    assert found["outcomes"].keys() == READERS.keys()
    assert sum(sum(o.values()) for o in found["outcomes"].values()) == FILES
    # a fuzzer whose files are all read, or all refused, would test nothing
    refused = [name for name, o in found["outcomes"].items() if o.get("refused")]
    assert set(READERS) - set(refused) <= {"results"}, "lines of results are left out, not refused"


def test_the_watch_sees(tmp_path):
    """What the last test says of programs and files holds because its hook would see them."""
    code = (
        "import os, subprocess, sys; from pathlib import Path;"
        "from tests.attack.watch import Watch;"
        "w = Watch(Path(sys.argv[1])); w.on = True;"
        "Path(sys.argv[1], 'in').write_text('x'); subprocess.run(['true']);"
        "Path(sys.argv[2]).write_text('x'); os.remove(sys.argv[2]); w.on = False;"
        "print(len(w.seen), *[s.split()[0] for s in w.seen])"
    )
    inside = tmp_path / "inside"
    inside.mkdir()
    words = [sys.executable, "-W", "ignore", "-c", code, str(inside), str(tmp_path / "outside")]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert "subprocess.Popen" in said and said.count("open") == 1 and "os.remove" in said
