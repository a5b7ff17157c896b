"""Which errors of reading are final, and which may pass.

A wrong example stays wrong, and the job ends with what is wrong. Storage that does not answer may
do so for the next worker: only this worker ends, and is replaced as after any failure. If that is
no use, the job ends after some of them.
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
"""`UnknownError` is what TensorFlow makes of most exceptions in Python."""


def read_error(text: str, cause: Exception) -> DataError | InputUnavailableError:
    """What to raise for an error of reading, with a text for people."""
    passes = isinstance(cause, MAY_PASS) and not isinstance(cause, FINAL)
    return InputUnavailableError(text) if passes else DataError(text)
