"""Runs that are stopped on purpose."""

import signal

import pytest

from torchcaps.errors import Interrupted
from torchcaps.training.loop import start
from torchcaps.training.run import Run
from torchcaps.training.state import Training


def stopping_at(step, recipe, folder, number):
    """Start a run that a signal stops after so many steps."""
    original = Training.step

    def stopping(self):
        original(self)
        if self.state.step == step:
            signal.raise_signal(number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "step", stopping)
        start(recipe, folder)


def stopped_at(step, recipe, folder, number=signal.SIGINT):
    """A run that a signal stopped after so many steps."""
    with pytest.raises(Interrupted):
        stopping_at(step, recipe, folder, number)
    return Run(folder)
