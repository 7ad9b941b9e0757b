"""A data set of a user's own, as docs/how-to/own-dataset.md writes it."""

import re
from pathlib import Path

from torchcaps.cli import main
from torchcaps.data.registry import DATASETS

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "own-dataset.md"


def test_the_data_set_of_the_how_to_is_shown_and_has_its_options(tmp_path, monkeypatch, capsys):
    (code,) = (x for x in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S) if "@" in x)
    monkeypatch.chdir(tmp_path)
    Path("stripes.py").write_text(code)
    try:
        words = ["data", "show", "stripes,count=40", "--plugin", "stripes.py", "--out", "s.png"]
        assert main(words) == 0
        assert "train 32" in capsys.readouterr().out and Path("s.png").stat().st_size > 1000
    finally:
        DATASETS.pop("stripes", None)
