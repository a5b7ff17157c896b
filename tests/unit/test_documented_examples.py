"""The examples in docstrings give what they say."""

from __future__ import annotations

import doctest
import importlib

import pytest

from tests.harness.documentation import ROOT

PACKAGE = ROOT / "hvd_elastic_keras"
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in PACKAGE.rglob("*.py")
    if ">>> " in path.read_text()
)


def test_there_are_examples() -> None:
    assert len(MODULES) > 30


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_a_module_give_what_they_say(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0
