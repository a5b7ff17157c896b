"""Refuses changes of `trainable` by callbacks that plain Keras would see, but the steps do not.

Plain Keras traces its function in the first step after `compile`, after the calls of
`on_train_begin`, `on_epoch_begin` and `on_train_batch_begin`. The steps here are traced before
these calls, so that no worker waits for the tracing. Later changes are not seen by plain Keras
either.
"""

from __future__ import annotations

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.keras_internals.model_variables import Trainable
from hvd_elastic_keras.loop.observer import Observer
from hvd_elastic_keras.state.cursor import Cursor


class ChangesUnseen(Observer):
    """Looks at `trainable` of all layers before the first step.

    Args:
      trainable: values of `trainable` when the steps were traced. None if the steps come from an
        earlier `fit`: Keras, too, uses its function again.
    """

    def __init__(self, trainable: Trainable | None) -> None:
        self._trainable = trainable

    def before_step(self, cursor: Cursor) -> None:
        """Refuses a change before the first step. All workers do so together."""
        if self._trainable is None or cursor.progress:
            return
        if changed := self._trainable.changed:
            raise ConfigurationError(
                f"A callback has changed trainable of {', '.join(changed)} before the first step, "
                "when the steps had been traced already, expected it to stay. Set it before fit, "
                "and compile the model after that."
            )
        self._trainable = None
