"""The directive `{program} torchcaps …`: what a command prints, run when the site is built.

:markdown:   the output is Markdown, such as a table; otherwise it is shown as text
"""

import contextlib
import io
import os
import shlex
from unittest import mock

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


def printed(command: str) -> str:
    """What a command of torchcaps prints, without colors, in 100 columns."""
    from torchcaps.cli import main

    program, *words = shlex.split(command)
    assert program == "torchcaps", command
    text = io.StringIO()
    plain = {"COLUMNS": "100", "NO_COLOR": "1"}
    with mock.patch.dict(os.environ, plain), contextlib.redirect_stdout(text):
        if main(words):
            raise RuntimeError(f"{command} failed")
    return text.getvalue().strip("\n")


class Program(SphinxDirective):
    required_arguments = 1
    final_argument_whitespace = True
    option_spec = {"markdown": directives.flag}

    def run(self) -> list[nodes.Node]:
        text = printed(self.arguments[0])
        if "markdown" in self.options:
            place = nodes.container()
            self.state.nested_parse(StringList(text.splitlines()), self.content_offset, place)
            return place.children
        shown = f"$ {self.arguments[0]}\n{text}" if "list" in self.arguments[0] else text
        block = nodes.literal_block(shown, shown)
        block["language"] = "text"
        return [block]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("program", Program)
    return {"parallel_read_safe": False}
