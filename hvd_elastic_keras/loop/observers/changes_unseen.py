"""Refuses changes by callbacks that plain Keras would see, but the steps do not.

Plain Keras traces its function in the first step after `compile`, after the calls of
`on_train_begin`, `on_epoch_begin` and `on_train_batch_begin`. The steps here are traced before
these calls, so that no worker waits for the tracing. Plain Keras does not see later changes of
`trainable` either, unless the callback makes Keras trace again: with `compile` or
`make_train_function`.
"""

from __future__ import annotations

import keras

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.keras_internals.model_variables import Trainable
from hvd_elastic_keras.loop.observer import Observer
from hvd_elastic_keras.state.cursor import Cursor


class ChangesUnseen(Observer):
    """Looks at `trainable` of all layers before the first step, and at `compile` before each.

    Args:
      model: the model that is trained; its steps have been made.
      trainable: values of `trainable` when the steps were traced. None if the steps come from an
        earlier `fit`: Keras, too, uses its function again.
    """

    def __init__(self, model: keras.Model, trainable: Trainable | None) -> None:
        self._model, self._function = model, model.train_function
        self._trainable = trainable

    def before_step(self, cursor: Cursor) -> None:
        """Refuses a change that the steps do not have. All workers do so together."""
        if self._model.train_function is not self._function:
            raise ConfigurationError(
                "A callback has called compile or make_train_function while fit was training, "
                "expected a model that stays as it was when fit began. Call fit for the epochs "
                "before the change, then compile, and call fit again for the other epochs "
                "(initial_epoch continues their numbers)."
            )
        if self._trainable is None or cursor.progress:
            return
        if changed := self._trainable.changed:
            raise ConfigurationError(
                f"A callback has changed trainable of {', '.join(changed)} before the first step, "
                "when the steps had been traced already, expected it to stay. Set it before fit, "
                "and compile the model after that."
            )
        self._trainable = None
