"""The messages that docs/troubleshooting.md explains are messages of this package."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.harness.documentation import ROOT

SOURCES = sorted((ROOT / "hvd_elastic_keras").rglob("*.py"))


def explained() -> Iterator[str]:
    """The first column of the page's tables, each message as it stands there."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    yield from re.findall(r"^\| `(.+)` \| .+ \|$", page, re.MULTILINE)


def texts_of(source: str) -> Iterator[str]:
    """The texts in a module; what is filled in at run time is left out of them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            for value in node.values:
                if isinstance(value, ast.Constant):
                    yield str(value.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_each_part_of_a_message_is_said_somewhere() -> None:
    said = "\n".join(text for path in SOURCES for text in texts_of(path.read_text()))
    parts = {part.strip(" ;") for message in explained() for part in message.split("…")}
    assert len(parts) > 60
    unknown = sorted(part for part in parts if part not in said)
    assert not unknown, f"nothing in the package says {unknown}"
