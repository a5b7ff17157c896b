"""A wrong example ends the job; storage that does not answer only ends a worker."""

from __future__ import annotations

import pytest

tf = pytest.importorskip("tensorflow")

from hvd_elastic_keras.common.errors import ConfigurationError, InputUnavailableError
from hvd_elastic_keras.data.examples.preparation import read_error


@pytest.mark.parametrize(
    "cause",
    [
        KeyError("x"),
        ValueError("x"),
        FileNotFoundError("x"),
        tf.errors.NotFoundError(None, None, "x"),
        tf.errors.DataLossError(None, None, "x"),
        tf.errors.InvalidArgumentError(None, None, "x"),
    ],
    ids=lambda cause: type(cause).__name__,
)
def test_what_stays_wrong_ends_the_job(cause: Exception) -> None:
    assert isinstance(read_error("text", cause), ConfigurationError)


@pytest.mark.parametrize(
    "cause",
    [
        OSError("x"),
        TimeoutError("x"),
        ConnectionResetError("x"),
        tf.errors.UnavailableError(None, None, "x"),
        tf.errors.UnknownError(None, None, "x"),
    ],
    ids=lambda cause: type(cause).__name__,
)
def test_what_may_pass_does_not(cause: Exception) -> None:
    found = read_error("text", cause)
    assert isinstance(found, InputUnavailableError)
    assert not isinstance(found, ConfigurationError)
    assert str(found) == "text"
