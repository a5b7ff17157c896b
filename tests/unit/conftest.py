"""Settings and fixtures for all unit tests: the same examples in every run, nothing is written."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from hvd_elastic_keras.data.notices import notices

settings.register_profile("unit", database=None, deadline=None, derandomize=True)
settings.load_profile("unit")


@pytest.fixture
def told() -> Iterator[list[str]]:
    """The notices of a test."""
    found: list[str] = []
    notices.report_to(lambda notice: found.append(notice.text))
    yield found
    notices.report_to(None)
