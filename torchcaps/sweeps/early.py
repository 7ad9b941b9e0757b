"""Early stopping of trials by asynchronous successive halving (Li et al., ASHA, 2018).

After 3, 6, 12, … validations a trial continues if its best value so far is among the best third of
the trials that came this far. The driver reads the runs' metrics and puts a file `stop` into the
folder of a trial that falls behind; the run ends with a checkpoint and can be resumed.
"""

from collections.abc import Callable, Sequence

FIRST = 3
"""Validations before the first comparison: schedules warm up, which misleads earlier ones."""
KEPT = 3
"""One trial in so many continues."""
Better = Callable[[float, float | None], bool]


class Halving:
    """The values of all trials at each rung."""

    def __init__(self, better: Better):
        self.better = better
        self.rungs: dict[int, dict[int, float]] = {}

    def behind(self, number: int, values: Sequence[float]) -> bool:
        """True if a trial with these validation values so far falls behind."""
        rung, late = FIRST, False
        while rung <= len(values):
            others = self.rungs.setdefault(rung, {})
            if number not in others:
                best = values[0]
                for value in values[1:rung]:
                    best = value if self.better(value, best) else best
                others[number] = best
                ahead = sum(self.better(other, best) and other != best for other in others.values())
                late = late or ahead >= max(1, len(others) // KEPT)
            rung *= 2
        return late
