"""What a page without a server runs on: two files of onnxruntime-web, from its npm package.

make vendor
"""

import base64
import hashlib
import subprocess
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from torchcaps.errors import TorchcapsError
from torchcaps.explorer.web import RUNTIME, VENDOR

PACKAGE = "onnxruntime-web@1.30.0"
SHA512 = "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
LICENSE = """onnxruntime-web is Copyright (c) Microsoft Corporation, under the MIT License:
https://github.com/microsoft/onnxruntime/blob/main/LICENSE
"""


def vendor() -> None:
    """Fetch the package by npm, check it, keep two files."""
    if all((VENDOR / name).is_file() for name in RUNTIME):
        return
    with TemporaryDirectory() as folder:
        try:
            subprocess.run(["npm", "pack", PACKAGE, "--silent"], cwd=folder, check=True,
                           capture_output=True)  # fmt: skip
        except (OSError, subprocess.CalledProcessError):
            raise TorchcapsError(f"npm gave no {PACKAGE}: is npm here, and its registry?") from None
        (archive,) = Path(folder).glob("*.tgz")
        content = archive.read_bytes()
        if base64.b64encode(hashlib.sha512(content).digest()).decode() != SHA512:
            raise TorchcapsError(f"{PACKAGE} is not the file that torchcaps was tried with.")
        VENDOR.mkdir(exist_ok=True)
        with tarfile.open(archive) as tar:
            for name in RUNTIME:
                member = tar.extractfile(f"package/dist/{name}")
                assert member is not None
                (VENDOR / name).write_bytes(member.read())
    (VENDOR / "LICENSE.txt").write_text(LICENSE)


if __name__ == "__main__":
    vendor()
