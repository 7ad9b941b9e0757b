"""Kills: at file events, at random moments; and a disk without room. The same bits in the end."""

import json

from tests.attack import ATTACK, driven

SHARE = 1 if ATTACK else 40
"""One file event of so many is tried."""
KILLS = 200 if ATTACK else 4
FREE = ("300", "late:40", "late:68", "lines:0")
"""Kilobytes that others leave free on the disk, from the start, at the end of a run, or before its
results are recorded.
"""
ALL = ("0", "4", "40", "150", "500", "700", "900", "late:0", "late:64", "late:72", "late:80")
MORE = ALL if ATTACK else ()


def test_a_kill_at_any_file_event_changes_nothing(tmp_path):
    found = driven("events", tmp_path / "runs", SHARE)
    assert not found["faults"], "\n".join(found["faults"])
    print(f"{found['tried']} of {found['events']} file events")
    assert not found["outside"], "a run writes in its folder and in results/"
    assert found["tried"] >= found["events"] // SHARE > 0
    kinds = {name.split()[0] for name in found["names"]}
    assert kinds >= {"open", "write", "half", "fsync", "replace", "unlink", "mkdir", "rmdir"}
    written = " ".join(found["names"])
    for part in ("results/other.jsonl", "run/model/model.safetensors", "run/record.json.tmp",
                 "run/metrics.jsonl", "run/start.json.tmp"):  # fmt: skip
        assert f"half of write {part}" in written


def test_a_kill_at_any_moment_changes_nothing(tmp_path):
    found = driven("kills", tmp_path / "runs", KILLS)
    assert not found["faults"], "\n".join(found["faults"])
    print(f"{found['kills']} kills over {found['runs']} runs")
    assert found["kills"] >= KILLS


def test_a_full_disk_loses_nothing(small_disk, tmp_path):
    """A sentence and exit 1; lines of results whole or absent; with room again the same bits."""
    found = driven("disk", small_disk, tmp_path / "elsewhere", *FREE, *MORE)
    assert not found["faults"], "\n".join(found["faults"])
    said = found["said"]
    assert all("torchcaps: " in said[free] for free in FREE), json.dumps(said, indent=1)
    assert "results/other.jsonl" in said["lines:0"], "the lines themselves found no room"
