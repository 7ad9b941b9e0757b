"""Fetch the files of onnxruntime-web that an exported page runs on, from its npm package.

make vendor

`make dist` puts them into the wheel, 3.7 MB there. Needs npm, and nothing of torchcaps.
"""

import base64
import hashlib
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

PACKAGE = "onnxruntime-web@1.30.0"
SHA512 = "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
FILES = ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm")
FOLDER = Path(__file__).parents[1] / "torchcaps" / "explorer" / "vendor"
LICENSE = """onnxruntime-web

MIT License

Copyright (c) Microsoft Corporation

Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files (the "Software"), to deal
in the Software without restriction, including without limitation the rights
to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all
copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
SOFTWARE.
"""


def vendor(folder: Path = FOLDER) -> None:
    """Fetch the package by npm, check its sha512, and keep two files and the license."""
    if all((folder / name).is_file() for name in (*FILES, "LICENSE.txt")):
        return
    with TemporaryDirectory() as work:
        words = ["npm", "pack", PACKAGE, "--silent"]
        try:
            subprocess.run(words, cwd=work, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            sys.exit(f"{' '.join(words)} failed ({error}). This needs npm and its registry.")
        (archive,) = Path(work).glob("*.tgz")
        found = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if found != SHA512:
            sys.exit(f"{PACKAGE} has the sha512 {found}, expected {SHA512}.")
        folder.mkdir(exist_ok=True)
        with tarfile.open(archive) as tar:
            for name in FILES:
                member = tar.extractfile(f"package/dist/{name}")
                assert member is not None
                (folder / name).write_bytes(member.read())
    (folder / "LICENSE.txt").write_text(LICENSE)


if __name__ == "__main__":
    vendor()
