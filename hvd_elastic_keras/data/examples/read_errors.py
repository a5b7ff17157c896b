"""Tells final errors of reading from errors that may pass.

A wrong example stays wrong, so the job ends with an error that says what is wrong. Storage that
does not answer may answer the next worker. Then only this worker ends, and is replaced as after any
failure. If this does not help, the job ends after several failures.
"""

from __future__ import annotations

import tensorflow as tf

from hvd_elastic_keras.common.errors import DataError, InputUnavailableError

FINAL = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
MAY_PASS = (
    OSError,
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.ResourceExhaustedError,
    tf.errors.UnavailableError,
    tf.errors.UnknownError,
)
"""TensorFlow turns most Python exceptions into an `UnknownError`."""


def read_error(text: str, cause: Exception) -> DataError | InputUnavailableError:
    """Returns the error to raise for an error of reading, with a text for people."""
    passes = isinstance(cause, MAY_PASS) and not isinstance(cause, FINAL)
    return InputUnavailableError(text) if passes else DataError(text)
