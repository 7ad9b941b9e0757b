"""What one looks at in a browser: for now, the report of one or several runs."""

from torchcaps.explorer.report import write_report

__all__ = ["write_report"]
