"""The documentation site: `make docs` builds it, NOTEBOOKS=0 without running the notebooks."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

import torchcaps  # noqa: E402

project = "torchcaps"
author = "The torchcaps developers"
copyright = author
version = release = torchcaps.__version__
language = "en"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "docstrings",
    "mathml",
    "program",
]
exclude_patterns = ["_ext", "_static"]
html_title = "torchcaps"
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b57a4", "color-brand-content": "#0b57a4"},
    "dark_css_variables": {"color-brand-primary": "#8ab8f0", "color-brand-content": "#8ab8f0"},
}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

myst_enable_extensions = ["dollarmath", "deflist", "colon_fence", "attrs_inline"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

autodoc_typehints = "signature"
autodoc_inherit_docstrings = False  # not those of torch
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "ignore-module-all": False}
python_use_unqualified_type_names = True
autosummary_generate = False
add_module_names = False
default_role = "code"
suppress_warnings = ["ref.python"]  # two names `data` of classes

notebooks = os.environ.get("NOTEBOOKS", "1") != "0"
nb_execution_mode = "force" if notebooks else "off"
nb_execution_in_temp = True  # runs and files of the notebooks
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
nb_ipywidgets_js = {}  # nothing is loaded from elsewhere
