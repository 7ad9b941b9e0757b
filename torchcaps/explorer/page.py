"""The frame of every page: one style, no script, no outside resource."""

import html

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --accent: #d9480f; }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 62rem; }
body { margin: 0 auto; padding: 2rem 1rem 4rem; }
header { border-bottom: 3px solid var(--accent); margin-bottom: 1.5rem; }
h1 { margin: 0; font-size: 1.9rem; } h2 { margin: 2.2rem 0 .4rem; font-size: 1.25rem; }
h3 { margin: 1.2rem 0 .3rem; font-size: 1rem; } header p { margin: .2rem 0 1rem; opacity: .75; }
section > p { max-width: 46rem; margin: .2rem 0 .8rem; opacity: .85; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid var(--line); text-align: left; }
th, td { vertical-align: top; }
td { overflow-wrap: anywhere; } tr:first-child > th { background: var(--soft); }
figure { margin: 0 0 1rem; } figcaption { font-size: .85rem; opacity: .7; }
img { max-width: 100%; background: #fff; border-radius: 6px; }
"""


def page(title: str, subtitle: str, body: str) -> str:
    """A whole HTML document."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<header><h1>{html.escape(title)}</h1><p>{html.escape(subtitle)}</p></header>"
        f"{body}</body></html>\n"
    )
