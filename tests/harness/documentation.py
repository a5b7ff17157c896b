"""Reads what the pages show: the commands of console blocks, and the code of examples."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "BUILD.md")),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "model_zoo").glob("**/README.md"),
    ]
)
_BLOCK = re.compile(
    r"(?:<!-- not run by a test: (?P<why>.+?) -->\s*\n)?"
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
      page: path relative to the checkout.
      line: the line of the page at which the block begins, counted from 1.
      why_not_run: the reason in the comment before the block; empty if there is none.
    """

    page: Path
    line: int
    language: str
    text: str
    why_not_run: str

    @property
    def commands(self) -> list[str]:
        """The commands typed, with their continuation lines, without comments that follow them."""
        typed = re.findall(r"^ *(?:\w+ )?\$ ((?:.*\\\n)*.*)$", self.text, re.MULTILINE)
        return [re.sub(r"\\\n\s*", " ", command) for command in typed]


def blocks(page: Path) -> Iterator[Block]:
    """Yields the fenced blocks of a page, in order."""
    text = page.read_text()
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start("language")) + 1
        relative = page.relative_to(ROOT)
        yield Block(relative, line, found["language"], found["text"], found["why"] or "")


def example(page: str, after: str) -> str:
    """Returns the first Python block of a page after some words, such as the name of its file."""
    text = (ROOT / page).read_text()
    _, found, rest = text.partition(after)
    if not found:
        raise LookupError(f"{page} does not say {after!r}")
    return rest.split("```python\n", 1)[1].split("```", 1)[0]
