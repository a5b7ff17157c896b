"""The examples in docstrings of modules that need no TensorFlow are true."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "module",
    [
        "config",
        "data.notices",
        "data.passes",
        "files",
        "launchers.base",
        "model_location",
        "batch_plan",
        "training.schedule",
    ],
)
def test_the_examples_of_a_module_give_what_they_say(module: str) -> None:
    result = doctest.testmod(importlib.import_module(f"hvd_elastic_keras.{module}"))
    assert result.attempted > 0
    assert result.failed == 0
