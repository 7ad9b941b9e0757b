"""Triton's interpreter at its quickest, for what does not look at the arithmetic of indices."""

from dataclasses import replace

import pytest


@pytest.fixture
def no_overflow_checks(monkeypatch):
    """The interpreter checks every sum of integers, which takes it a third of its time; every case
    is checked so in test_step.py::test_outputs_and_every_gradient, once.
    """
    builder = pytest.importorskip("triton.runtime.interpreter").interpreter_builder
    monkeypatch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))
