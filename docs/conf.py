"""Sphinx's settings for the documentation: `scripts/build_docs` builds it into build/docs.

Sphinx's source directory is the whole checkout, not `docs/`, so that a link from a page to
`../BUILD.md`, to a file of the package or from the README to `docs/hosts.md` is the same on GitHub
and here.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
# autodoc imports the package and with it TensorFlow, which is to look for no GPU and say nothing.
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

from hvd_elastic_keras._version import __version__  # noqa: E402

project = "hvd_elastic_keras"
version = release = __version__
root_doc = "docs/index"
include_patterns = [
    "README.md",
    "BUILD.md",
    "CHANGELOG.md",
    "docs/*.md",
    "model_zoo/README.md",
    "model_zoo/*/README.md",
]
# Not to be searched for pages: environments, results, jobs.
exclude_patterns = [".*", "build", "jobs"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4  # links to headings as on GitHub

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
toc_object_entries = False  # the page of the API has its names in its text
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"hvd_elastic_keras {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
# Listings have an ellipsis where something is left out, which no lexer likes.
suppress_warnings = ["misc.highlighting_failure"]

FRONT_PAGE = """<!doctype html>
<meta charset="utf-8">
<title>hvd_elastic_keras</title>
<meta http-equiv="refresh" content="0; url=docs/index.html">
<a href="docs/index.html">Documentation of hvd_elastic_keras</a>
"""


def write_front_page(app: Sphinx, exception: Exception | None) -> None:
    """The pages lie as in the checkout; the one that is asked for first leads to docs/index."""
    if exception is None and app.builder.format == "html":
        Path(app.outdir, "index.html").write_text(FRONT_PAGE, encoding="utf-8")


def leave_out_missing_pages(app: Sphinx, docname: str, source: list[str]) -> None:
    """docs/index.md may name pages that are written, or measured, later."""
    if docname == root_doc:
        lines = source[0].splitlines()
        pages = [line for line in lines if re.fullmatch(r"[a-z_]+", line)]
        missing = [page for page in pages if not (ROOT / "docs" / f"{page}.md").exists()]
        source[0] = "\n".join(line for line in lines if line not in missing)


def as_restructured_text(app: Sphinx, *described: Any) -> None:
    """Docstrings write code as `name`, and examples as indented blocks after an empty line.

    Args:
      described: kind, name, object and options of what has the docstring, and its lines, which are
        changed.
    """
    lines: list[str] = described[-1]
    converted: list[str] = []
    margin, in_code, after_empty = 0, False, False
    for line in _with_literals("\n".join(lines)).split("\n"):
        indent = len(line) - len(line.lstrip())
        if line:
            begins = after_empty and indent >= margin + 4
            if begins and not in_code:
                converted += [" " * margin + ".. code-block:: python", ""]
            in_code = begins or (in_code and indent >= margin + 4)
            margin = margin if in_code else indent
        after_empty = not line
        converted.append(".. rubric:: Example" if line == "Example:" else line)
    lines[:] = converted


def _with_literals(text: str) -> str:
    # Markup of reStructuredText ends before a blank or a punctuation mark: `tf.Variable`s does not.
    return re.sub(r"`([^`]+)`(\w?)", lambda f: f"``{f[1]}``" + (f"\\ {f[2]}" if f[2] else ""), text)


def setup(app: Sphinx) -> None:
    # Before napoleon (500), which makes lists of the sections.
    app.connect("autodoc-process-docstring", as_restructured_text, priority=400)
    app.connect("source-read", leave_out_missing_pages)
    app.connect("build-finished", write_front_page)
