"""Whether the installed Keras is one that this package works with.

Imported before anything that relies on private names of Keras: another release may lack them.
"""

from __future__ import annotations

import keras

from hvd_elastic_keras.errors import ConfigurationError
from hvd_elastic_keras.worker import one_line_errors

OLDEST, NEWEST = (3, 8), (3, 15)
"""Tested range. Relied on are, among others, the local variables of `Model.fit`."""


def check() -> None:
    """Raises `ConfigurationError` for a backend or release this package does not work with."""
    if keras.backend.backend() != "tensorflow":
        raise ConfigurationError(
            f"Keras runs on {keras.backend.backend()}, expected TensorFlow. "
            "Set KERAS_BACKEND=tensorflow."
        )
    version = tuple(int(part) for part in keras.__version__.split(".")[:2])
    if not OLDEST <= version <= NEWEST:
        raise ConfigurationError(
            f"Keras {keras.__version__} is installed, expected {OLDEST[0]}.{OLDEST[1]} to "
            f"{NEWEST[0]}.{NEWEST[1]}. Install one of these: pip install 'keras>=3.8,<3.16'."
        )


def check_in_script() -> None:
    """As `check`, when a script imports a name that needs Keras."""
    try:
        check()
    except ConfigurationError:
        one_line_errors.install()
        raise
