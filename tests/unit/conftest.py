"""Settings and fixtures for all unit tests: the same examples in every run, nothing is written."""

import gc
import resource
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from hvd_elastic_keras.observe.notices import notices

MOST_GROWTH_BYTES = 3 * 2**30

settings.register_profile("unit", database=None, deadline=None, derandomize=True)
settings.load_profile("unit")


class Collector:
    """Keeps Python's garbage collector to what is new: that of the test before.

    Else half of the time goes into looking again and again through all that TensorFlow keeps. What
    becomes garbage later goes when it may be as much as `MOST_GROWTH_BYTES`.
    """

    def __init__(self) -> None:
        self._size = resident_bytes()

    def begin_test(self) -> None:
        grown = resident_bytes() - self._size > MOST_GROWTH_BYTES
        if grown:
            gc.unfreeze()
        gc.collect()
        if grown:
            self._size = resident_bytes()
        gc.freeze()


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


COLLECTOR = Collector()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Before the time of a test begins: to take apart what hundreds have left may take minutes."""
    COLLECTOR.begin_test()
    return (yield)


@pytest.fixture(autouse=True)
def nothing_of_other_tests_is_told() -> None:
    """Forgets notices that nobody has shown: the next `fit` of this process would show them."""
    notices.report_to(None)


@pytest.fixture
def told(nothing_of_other_tests_is_told: None) -> Iterator[list[str]]:
    """The notices of a test."""
    found: list[str] = []
    notices.report_to(lambda notice: found.append(notice.text))
    yield found
    notices.report_to(None)
