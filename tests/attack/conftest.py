"""A disk of 3 MB for tests that need one to be full or read-only."""

import subprocess

import pytest


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 3 MB, where this user may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)]
    try:
        mounted = subprocess.run(words, capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"there is no mount ({error})")
    if mounted.returncode:
        pytest.skip(f"this user may not mount a disk ({mounted.stderr.strip()})")
    yield place
    subprocess.run(["umount", str(place)], check=True)
