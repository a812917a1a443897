"""The site: `make docs`. Its sources are Markdown files where they stand, so that their links work there too."""

import re
import sys
import warnings
from pathlib import Path
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "src"))
warnings.filterwarnings("ignore", category=DeprecationWarning)

from lariax import __version__  # noqa: E402 (of this tree, not of another that is installed)

project, author, version, release = "Lariax", "The Lariax authors", __version__, __version__
copyright = "The Lariax authors, Apache-2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "sphinx_design"]
root_doc = "docs/index"
ABOUT = ("CHANGELOG.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md")
include_patterns = ["docs/**", "benchmarks/results/*.md", *ABOUT]
exclude_patterns = ["docs/_static", "docs/_root", "**/__pycache__"]

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
myst_links_external_new_tab = False
suppress_warnings = ["myst.header"]  # pages of results begin with tables of their own
copybutton_exclude = ".linenos, .gp, .go"

default_role = "code"  # docstrings mark code as Markdown does
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
python_maximum_signature_line_length = 88
napoleon_google_docstring, napoleon_numpy_docstring = True, False
napoleon_use_ivar = True

html_theme = "furo"
html_title = "Lariax"
html_static_path = ["_static"]
html_css_files = ["lariax.css"]
html_favicon = "_static/lariax.svg"
html_logo = "_static/lariax.svg"
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_extra_path = ["_root"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0a5f8a", "color-brand-content": "#0a5f8a"},
    "dark_css_variables": {"color-brand-primary": "#6cc4ec", "color-brand-content": "#6cc4ec"},
}
pygments_style, pygments_dark_style = "friendly", "github-dark"
html_math_renderer = "mathml"

SECTIONS = re.compile(r"^(Args|Arguments|Attributes|Returns|Raises):$")
LABELS = re.compile(r"^(Scale|Check): ")
MARKS = re.compile(r"(`[^`]*`)|(\||\*|(?<=\w)_(?!\w))")


def as_restructured_text(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text: indented paragraphs are formulas, shown as they stand; the one mark is `code`."""
    shown: list[str] = []
    head, literal, example = "", False, False
    for i, line in enumerate(lines):
        if not line.strip():
            example = False
        elif not line.startswith(" "):
            head, literal = line, False
        example = example or line.lstrip().startswith(">>>")
        if LABELS.match(line) or SECTIONS.match(line):
            shown.append("")
        if LABELS.match(head):
            shown.append(escaped(line.strip()))
            continue
        if line.startswith("    ") and not example and not literal and not SECTIONS.match(head):
            literal = i > 0 and not lines[i - 1].strip()
            shown += ["::", ""] if literal else []
        shown.append(line if literal or example else escaped(line))
    lines[:] = shown


def escaped(line: str) -> str:
    return MARKS.sub(lambda mark: mark[1] or f"\\{mark[2]}", line)


def without_private(app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str, returns: str) -> Any:
    """Parameters that begin with an underscore are nobody's business."""
    return re.sub(r", _\w+: \w+ = \w+", "", signature) if signature else None, returns


def visit_math(self: Any, node: nodes.Element) -> None:
    display = "block" if isinstance(node, nodes.math_block) else "inline"
    text = convert(node.astext(), display=display)
    self.body.append(f'<div class="math">{text}</div>' if display == "block" else text)
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", as_restructured_text, priority=400)  # before napoleon
    app.connect("autodoc-process-signature", without_private)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))
