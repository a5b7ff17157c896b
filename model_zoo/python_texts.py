"""English texts that come with every Python: docstrings of the standard library, and the manual.

Both depend on the release of Python, so all workers of a job need the same release.
"""

from __future__ import annotations

import ast
import functools
import pydoc_data.topics
import sysconfig
import zlib
from collections.abc import Iterator
from pathlib import Path

PARTS = (
    "asyncio",
    "email",
    "importlib",
    "logging",
    "xml",
    "multiprocessing",
    "unittest",
    "_pydecimal.py",
)
"""Packages and modules of the standard library with many docstrings."""
LEAST_WORDS = 5
HELD_OUT = 5
"""A docstring is for validation if its checksum is a multiple of this."""


@functools.cache
def docstrings(split: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Returns docstrings, and for each the index in `PARTS` of its package or module.

    The text of a docstring decides whether it belongs to "train" or "validation". Copies of the
    same text are therefore never in both.
    """
    found: dict[str, int] = {}
    for part, name in enumerate(PARTS):
        for text in _docstrings_of(Path(sysconfig.get_path("stdlib")) / name):
            if len(text.split()) >= LEAST_WORDS:
                found.setdefault(text, part)
    held_out = split == "validation"
    kept = [t for t in found if (zlib.crc32(t.encode()) % HELD_OUT == 0) == held_out]
    return tuple(kept), tuple(found[text] for text in kept)


def _docstrings_of(path: Path) -> Iterator[str]:
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module
    for file in files:
        for node in ast.walk(ast.parse(file.read_bytes())):
            text = ast.get_docstring(node) if isinstance(node, kinds) else None
            if text:
                yield text


@functools.cache
def manual() -> str:
    """Returns the language reference of `help()`: about 80 topics, 0.5 million characters."""
    topics = pydoc_data.topics.topics
    return "\n\n".join(topics[name] for name in sorted(topics))
