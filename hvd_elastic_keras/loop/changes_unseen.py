"""Refuses that callbacks freeze layers where plain Keras would see it, and the steps do not.

Plain Keras traces its function in the first step after `compile`, when `on_train_begin`,
`on_epoch_begin` and `on_train_batch_begin` have been called. The steps here are traced before
that, so that nobody waits for it. What comes later, Keras does not see either.
"""

from __future__ import annotations

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.keras_internals.trainable import Trainable
from hvd_elastic_keras.loop.observer import Observer
from hvd_elastic_keras.state.cursor import Cursor


class ChangesUnseen(Observer):
    """Looks at `trainable` of all layers before the first step.

    Args:
      trainable: as the steps were traced; None if they are those of an earlier `fit`, with which
        Keras goes on, too.
    """

    def __init__(self, trainable: Trainable | None) -> None:
        self._trainable = trainable

    def before_step(self, cursor: Cursor) -> None:
        """All workers begin with the same step, and so refuse it together."""
        if self._trainable is None or cursor.progress:
            return
        if changed := self._trainable.changed:
            raise ConfigurationError(
                f"A callback has changed trainable of {', '.join(changed)} before the first step, "
                "when the steps had been traced already, expected it to stay. Set it before fit, "
                "and compile the model after that."
            )
        self._trainable = None
