"""Formulas as MathML, which browsers draw themselves: no script, no font, no network."""

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx


def _inline(self, node: nodes.Element) -> None:
    self.body.append(f'<span class="math">{tex2mathml(node.astext())}</span>')
    raise nodes.SkipNode


def _block(self, node: nodes.Element) -> None:
    formula = tex2mathml(node.astext(), as_block=True)
    self.body.append(f'<div class="math">{formula}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True}
