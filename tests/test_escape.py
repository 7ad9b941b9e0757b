"""Text of unknown origin in a terminal, in CSV and in HTML."""

import io

import pytest
from rich.progress import Progress, TextColumn
from rich.table import Table

from torchcaps.escape import Console, for_csv, for_html, for_terminal

HOSTILE = "\x1b[2J\x1b]0;title\x07 [/x][red]a[/] \u202egnp.exe \r\x9b31m"


def printed(*values, **options) -> str:
    file = io.StringIO()
    Console(file=file, width=200, force_terminal=True, color_system=None, **options).print(*values)
    return file.getvalue()


def test_a_terminal_gets_no_control_characters():
    assert for_terminal(HOSTILE).isprintable()
    assert for_terminal("a\x1bb\udcff") == "a\\x1bb\\udcff"
    assert for_terminal("née 日本 \U0001f468\u200d\U0001f469\n\t[x]") == (
        "née 日本 \U0001f468\u200d\U0001f469\n\t[x]"
    )
    assert for_terminal(for_terminal(HOSTILE)) == for_terminal(HOSTILE)


@pytest.mark.parametrize("as_table", [False, True])
def test_a_console_prints_text_as_it_is(as_table):
    table = Table(HOSTILE)
    table.add_row(HOSTILE)
    table.title = HOSTILE
    text = printed(table if as_table else HOSTILE, soft_wrap=False)
    assert text.count("[/x][red]a[/]") == (3 if as_table else 1)
    assert all(c.isprintable() or c == "\n" for c in text), ascii(text)


def test_a_console_still_has_colors_and_bars():
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system="standard")
    console.print("x", style="red")
    with Progress(TextColumn("{task.description}", markup=False), console=console) as progress:
        progress.add_task("[/x]\x1b[2J")
    assert "\x1b[31mx" in file.getvalue() and "[/x]\\x1" in file.getvalue()


@pytest.mark.parametrize("text", ["=HYPERLINK(1)", "+1", "-1", "@x", "\tx", "\rx"])
def test_a_spreadsheet_computes_no_name(text):
    assert for_csv(text).startswith("'")
    assert for_csv("a=1") == "a=1" and "\x1b" not in for_csv("\x1b=1")


def test_html_and_markdown_get_no_tags_and_no_cells():
    text = for_html("<b>|a\nb & \x1b")
    assert text == "&lt;b&gt;&#124;a b &amp; \\x1b"
