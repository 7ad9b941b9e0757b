"""Pages for a browser: the interactive explorer and reports of runs."""

from torchcaps.explorer.report import write_report

__all__ = ["write_report"]
