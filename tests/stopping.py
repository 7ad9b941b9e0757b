"""Runs that are stopped on purpose."""

import signal

import pytest

from torchcaps.errors import Interrupted
from torchcaps.training.loop import start
from torchcaps.training.run import Run
from torchcaps.training.state import Training


def stopped_at(step, recipe, folder, number=signal.SIGINT):
    """A run that a signal stopped after so many steps."""
    original = Training.step

    def stopping(self):
        original(self)
        if self.state.step == step:
            signal.raise_signal(number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "step", stopping)
        with pytest.raises(Interrupted):
            start(recipe, folder)
    return Run(folder)
