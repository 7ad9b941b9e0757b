"""The one exception that is meant for a person: a line or two that say what to do."""

from difflib import get_close_matches


class TorchcapsError(Exception):
    """Something the user can mend. The command line prints its text and exits with 1."""


def nearest(word: str, choices: list[str]) -> str:
    """' Did you mean …?' for a misspelt name, or the choices when nothing is near."""
    close = get_close_matches(word, choices, n=1, cutoff=0.5)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"There are: {', '.join(sorted(choices))}."
