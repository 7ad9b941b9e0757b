"""Install the built wheel and source archive into fresh environments and use each.

python scripts/check_dist.py dist
"""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

LARGEST = 16 * 2**20
"""Largest archive in bytes; onnxruntime-web is 3.7 MB of it."""
TRY = """
import torch, torchcaps
model = torchcaps.create_model("capsnet-small.digits", pretrained=True)
digits = torchcaps.data.load("digits").test.batch(slice(0, 50))
right = (model(digits.images).logits.argmax(1) == digits.labels).float().mean()
assert right > 0.8, right
from torchcaps.explorer.web import RUNTIME, VENDOR
assert all((VENDOR / name).is_file() for name in (*RUNTIME, "LICENSE.txt")), "no web export"
assert "site-packages" in torchcaps.__file__, torchcaps.__file__
print(torchcaps.__version__, "works:", torchcaps.__file__)
"""


def main(folder: Path) -> None:
    constraints = Path("constraints.txt").resolve()
    archives = [*folder.glob("*.whl"), *folder.glob("*.tar.gz")]
    assert len(archives) == 2, f"{folder} holds {archives}: one wheel and one source archive"
    for archive in archives:
        assert archive.stat().st_size < LARGEST, f"{archive} has {archive.stat().st_size:,} bytes"
        with tempfile.TemporaryDirectory() as place:
            venv.create(place, with_pip=True)
            python = Path(place) / "bin" / "python"
            words = ["-m", "pip", "install", "--quiet", "-c", str(constraints), str(archive)]
            subprocess.run([str(python), *words], check=True)
            subprocess.run([str(python), "-c", TRY], check=True, cwd=place)
            subprocess.run([str(python.with_name("torchcaps")), "--version"], check=True, cwd=place)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
