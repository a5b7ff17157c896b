"""The examples in docstrings of modules that need no TensorFlow are true."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "module",
    [
        "common.config",
        "common.events",
        "master.machine.departure",
        "master.machine.restart_policy",
        "observe.notices",
        "observe.explain",
        "observe.tables",
        "data.plan.fit_passes",
        "common.files",
        "common.goodput",
        "launchers.base",
        "cli.find_model",
        "cli.checks.finding",
        "cli.checks.gpus",
        "cli.checks.machine",
        "cli.checks.software",
        "common.versions",
        "common.batch_plan",
        "loop.epoch_records",
        "loop.step_records",
        "observe.event_log",
        "observe.web_files",
        "loop.schedule",
    ],
)
def test_the_examples_of_a_module_give_what_they_say(module: str) -> None:
    result = doctest.testmod(importlib.import_module(f"hvd_elastic_keras.{module}"))
    assert result.attempted > 0
    assert result.failed == 0
