"""Every public name has a summary and an example, which `pytest --doctest-modules` runs."""

import inspect
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import torchcaps

PACKAGES = ("analysis", "data", "functional", "layers", "losses", "metrics", "models", "routing")
ROOT = Path(__file__).parents[1]


def public() -> dict[str, object]:
    """Public functions and classes by their names, without packages and aliases of types."""
    names = {f"torchcaps.{n}": getattr(torchcaps, n) for n in torchcaps.__all__}
    for package in PACKAGES:
        module = import_module(f"torchcaps.{package}")
        own = getattr(module, "__all__", None) or [
            n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__
        ]
        names |= {
            f"{module.__name__}.{n}": getattr(module, n) for n in own if not n.startswith("_")
        }
    return {
        name: value
        for name, value in names.items()
        if not isinstance(value, ModuleType) and (inspect.isclass(value) or callable(value))
        if getattr(value, "__module__", "").startswith("torchcaps")
        if hasattr(value, "__qualname__")
    }


PUBLIC = public()


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_a_summary_and_an_example(name):
    text = inspect.getdoc(PUBLIC[name]) or ""
    assert text.split("\n")[0].strip(), f"{name} has no summary"
    assert ">>> " in text, f"{name} has no example"
    assert "+SKIP" not in text, f"the example of {name} is not run"


def test_examples_of_all_public_names_are_run():
    paths = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    run = [(ROOT / path).resolve() for path in paths["testpaths"]]
    for name, value in PUBLIC.items():
        file = Path(inspect.getsourcefile(inspect.unwrap(value)) or "").resolve()  # type: ignore
        assert any(file == path or path in file.parents for path in run), f"{name}: {file}"
