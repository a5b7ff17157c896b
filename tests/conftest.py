"""Which tests are run, and for how long.

A test that hangs ends its process, with the stacks of all threads. All others are run.

pytest-timeout interrupts Python. This is for what cannot be interrupted: a wait in C++, one after
the interruption, or one of code that has taken it for an error of its own.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from pathlib import Path

import pytest

AFTER_TIMEOUT_S = 60.0
STDERR = pytest.StashKey[int]()
REPOSITORY = str(Path(__file__).parents[1])
"""On the search path of all Python processes of the tests."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out tests that are marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what `--quick` leaves out; the closing line counts it as deselected."""
    if not config.getoption("--quick"):
        return
    left_out = [item for item in items if _is_slow(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    kept = {_function(item) for item in items}
    for item in left_out:
        marker = item.get_closest_marker("slow")
        if marker and marker.kwargs and _function(item) not in kept:
            raise pytest.UsageError(f"{_function(item)} has none of {marker.kwargs['but']}")


def _function(item: pytest.Item) -> str:
    return item.nodeid.split("[")[0]


def _is_slow(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("slow")
    if marker is None:
        return False
    kept = marker.kwargs.get("but", ())
    return not any(item.name.endswith(f"[{parameters}]") for parameters in kept)


def pytest_configure(config: pytest.Config) -> None:
    """Keeps the real stderr, which is captured during tests; sets what started processes inherit.

    Under `nohup` SIGHUP is ignored, and SIGINT by what a shell starts in the background; so do all
    that tests start, of which some show what a signal does.
    """
    config.stash[STDERR] = os.dup(2)
    path = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([REPOSITORY, *path]))
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure() -> None:
    faulthandler.cancel_dump_traceback_later()


def pytest_runtest_logfinish() -> None:
    """Between tests nobody is in a hurry."""
    faulthandler.cancel_dump_traceback_later()


def _limit(item: pytest.Item) -> None:
    marker = item.get_closest_marker("timeout")
    timeout_s = float(marker.args[0] if marker else item.config.getini("timeout"))
    faulthandler.dump_traceback_later(
        timeout_s + AFTER_TIMEOUT_S, exit=True, file=item.config.stash[STDERR]
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _limit(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    _limit(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    _limit(item)
