"""Docstrings and comments put the subject first: openings that hide it are kept out."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.job import REPOSITORY

ROOMS = ("hvd_elastic_keras", "model_zoo")
FILES = sorted(path for room in ROOMS for path in (REPOSITORY / room).rglob("*.py"))
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
OPENING = re.compile(
    r"(?:^|(?<=[.;:!?] )|(?<=\n\n))\s*"
    r"((?:Of|Who|Whose|So many|So long|So much)\b(?! (?:course|which)\b)[^.?]*)(?P<end>[.?]?)"
)
"""A question may begin with "Who"."""


def found_in(text: str) -> list[str]:
    """The sentences of a text that begin with one of the openings.

    >>> found_in("Returns rows. Of a worker.")
    ['Of a worker']
    """
    flat = re.sub(r"(?<!\n)\n[ ]*(?!\n|[-*|])", " ", text)
    return [m[1] for m in OPENING.finditer(flat) if m["end"] != "?"]


def docstrings(tree: ast.AST) -> Iterator[str]:
    """Those of modules, classes, functions and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield str(node.value.value)


def comments(source: str) -> Iterator[str]:
    """Comments, of which those of neighbouring lines are one."""
    lines: list[str] = []
    last = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1 and lines:
                yield " ".join(lines)
                lines = []
            lines.append(token.string.lstrip("# "))
            last = token.start[0]
    yield " ".join(lines)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(REPOSITORY)))
def test_no_docstring_and_no_comment_hides_its_subject(path: Path) -> None:
    source = path.read_text()
    texts = [*docstrings(ast.parse(source)), *comments(source)]
    assert [sentence for text in texts for sentence in found_in(text)] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_no_page_hides_its_subject(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    assert found_in(text) == []
