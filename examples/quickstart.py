"""torchcaps in Python, in about a minute on a CPU: load, train, evaluate, predict, export, look.

pip install 'torchcaps[analysis,export]'
python examples/quickstart.py              add --explore to open the explorer at the end
"""

import sys
import tempfile
from pathlib import Path

from PIL import Image

import torchcaps


def make_photos(folder: Path, count: int = 60) -> Path:
    """An image folder, one subfolder per class, as people have them: here of three digits."""
    digits = torchcaps.data.load("digits")
    for label, name in ((0, "zero"), (1, "one"), (7, "seven")):
        (folder / name).mkdir(parents=True)
        rows = (digits.train.labels == label).nonzero()[:count, 0]
        for row in rows.tolist():
            pixels = digits.train.images[row, 0].numpy()
            Image.fromarray(pixels).resize((40, 40)).save(folder / name / f"{row}.png")
    return folder


def main(folder: Path, epochs: int = 12) -> float:
    photos = make_photos(folder / "photos")
    an_image = next((photos / "seven").glob("*.png"))

    # 1. a pretrained model: a name is an architecture, a tag is weights
    model = torchcaps.create_model("capsnet-small.digits", pretrained=True)
    print(model.predict(an_image)[0][0])
    digits = torchcaps.data.load("digits")
    print(model(digits.test.batch(slice(0, 2)).images))  # every intermediate by name

    # 2. train on your own images; batch size, epochs and augmentation follow from the data
    run = torchcaps.fit(
        "capsnet-small", data=f"folder:{photos},size=28", epochs=epochs, out=folder / "run"
    )
    print(run)

    # 3. evaluate, predict, embed, export
    numbers = torchcaps.evaluate(run, metrics=["accuracy", "calibration"])["numbers"]
    print({name: round(value, 3) for name, value in numbers.items()})
    print(torchcaps.predict(run, [an_image])[0][0])
    print("vectors", tuple(torchcaps.embed(run, photos).shape))
    print("wrote", torchcaps.export(run, folder / "model.onnx"))

    # 4. look inside
    print("wrote", torchcaps.report(run))
    torchcaps.plot("traversal", run, out=folder / "traversal.png")
    if "--explore" in sys.argv:
        torchcaps.explore(run)
    return numbers["accuracy"]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
