"""Sphinx builds the documentation: ``nox -s docs``, or ``sphinx-build -W -n docs build/docs``."""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "ipygpulogger"
author = "The ipygpulogger maintainers"
copyright = f"2026, {author}"  # noqa: A001 - Sphinx's name for it
release = version = version_of("ipygpulogger")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "from_code"]

html_theme = "furo"
html_title = "ipygpulogger"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
pygments_style, pygments_dark_style = "friendly", "github-dark"

exclude_patterns = ["_build", "_ext"]
default_role = "code"  # docstrings write `Name`
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(?!ipygpulogger\.).*"),  # of other libraries
    ("py:class", r"ipygpulogger\..*\.([A-Z]|_\w+)"),  # type variables and private classes
]

myst_enable_extensions = ["colon_fence", "attrs_block", "attrs_inline"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_mock_imports = ["fastai", "lightning", "transformers", "keras"]
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # attributes as a list, with their units
smartquotes_action = "De"  # dashes and dots; values are quoted as they are typed
copybutton_exclude = ".linenos, .gp, .go"
