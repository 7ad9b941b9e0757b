"""Export the explorer as static files: the same page, with ONNX graphs instead of the server.

index.html …           the page, with backend-static.js as backend.js
manifest.json          the answers of /api/runs for each model, and precomputed accuracy curves
models/N/*.onnx        graphs of its questions, and weights.bin
models/N/images.bin    test images
runtime/               onnxruntime-web and its license
"""

import base64
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torchcaps.errors import TorchcapsError
from torchcaps.explorer.files import import_map, static_files
from torchcaps.explorer.graphs import write_graphs
from torchcaps.explorer.jobs import CURVES, accuracy_at, curve_batch
from torchcaps.explorer.shelf import Shelf, shown
from torchcaps.outputs import check_file, check_folder, scratch_folder

VENDOR = Path(__file__).parent / "vendor"
RUNTIME = ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm")
SHOWN = 64
"""Number of test images in the export."""
README = """Serve this folder and open its address in a browser:

    python -m http.server

Browsers do not load JavaScript modules from a disk. For one file that opens without a server, run:

    torchcaps export RUN --format web --single-file
"""


def export_web(
    shelf: Shelf,
    out: Path,
    single_file: bool = False,
    runtime: Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
    force: bool = False,
) -> None:
    """Write a page with all models of a shelf, as a folder or as one HTML file.

    progress: called with the name of each model; force: replace files
    """
    (check_file if single_file else check_folder)(out, force=force)
    files = {name: content for name, (content, _) in static_files().items()}
    files["backend.js"] = files.pop("backend-static.js")
    files |= _runtime(runtime or VENDOR)
    manifest = []
    for number, book in enumerate(shelf.books.values()):
        progress(book.name)
        model, data = shelf.model(book.id), shelf.data(book.id)
        facts = shelf.about(book.id)
        with scratch_folder(out) as folder:
            graphs = write_graphs(model, folder)
            files |= {f"models/{number}/{p.name}": p.read_bytes() for p in sorted(folder.iterdir())}
        answered = {*graphs, "steps"} if "steps-next" in graphs else set(graphs)
        rows = torch.arange(min(SHOWN, len(data.test)))
        files[f"models/{number}/images.bin"] = shown(data.test, rows, len(rows))
        manifest.append({
            "id": book.id, "name": book.name, "recipe": book.record["recipe"]["name"],
            "data": book.data, **facts, "record": book.provenance, "beside": [],
            "graphs": graphs, "questions": [q for q in facts["questions"] if q in answered],
            "curves": _curves(model, data.test) if "scores" in facts["encode"] else {},
        })  # fmt: skip
    files["manifest.json"] = json.dumps(manifest).encode()
    if single_file:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(_one_file(files))
        return
    files["README.txt"] = README.encode()
    for name, content in files.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(content)


def _runtime(folder: Path) -> dict[str, bytes]:
    """The files of onnxruntime-web; the wheel brings them, a checkout fetches them."""
    missing = [name for name in RUNTIME if not (folder / name).is_file()]
    if missing:
        raise TorchcapsError(
            f"{folder} lacks {', '.join(missing)} of onnxruntime-web. Run make vendor in a "
            "checkout of torchcaps, or unpack the npm package onnxruntime-web 1.30.0 and give "
            "--runtime package/dist."
        )
    names = [*RUNTIME, *(["LICENSE.txt"] if (folder / "LICENSE.txt").is_file() else [])]
    return {f"runtime/{name}": (folder / name).read_bytes() for name in names}


@torch.no_grad()
def _curves(model: Any, split: Any) -> dict[str, dict[str, list[float]]]:
    batch = curve_batch(split)
    return {
        kind: {"x": list(map(float, grid)), "y": [accuracy_at(model, batch, kind, x) for x in grid]}
        for kind, grid in CURVES.items()
        if kind != "shear_y"
    }


def _one_file(files: dict[str, bytes]) -> bytes:
    """The page as one HTML file: modules as data URLs in an import map, other files embedded."""
    scripts = {n: c.decode() for n, c in files.items() if n.endswith(".js")}
    scripts["ort"] = files[f"runtime/{RUNTIME[0]}"].decode()
    scripts["backend.js"] = scripts["backend.js"].replace(
        'import("./runtime/ort.wasm.bundle.min.mjs")', 'import("torchcaps/ort")'
    )
    imports = import_map(scripts)
    embedded = {
        name: base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()
        for name, content in files.items()
        if not name.endswith((".js", ".mjs", ".html", ".css", ".txt"))
    }
    page = files["index.html"].decode()
    style = files["style.css"].decode()
    page = page.replace('<link rel="stylesheet" href="style.css">', f"<style>{style}</style>")
    license = files.get("runtime/LICENSE.txt", b"").decode()
    blocks = (
        f"<!--\n{license}-->\n"
        f'<script type="importmap">{json.dumps({"imports": imports})}</script>\n'
        f'<script type="application/json" id="files">{json.dumps(embedded)}</script>\n'
        '<script type="module">import "torchcaps/main.js";</script>'
    )
    return page.replace('<script type="module" src="main.js"></script>', blocks).encode()
