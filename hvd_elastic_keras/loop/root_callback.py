"""`RootCallback`: callbacks that exist on rank 0 alone, such as those that report to a tracker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras

HOOKS = (
    "on_epoch_begin",
    "on_epoch_end",
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_test_begin",
    "on_test_end",
    "on_test_batch_begin",
    "on_test_batch_end",
    "on_train_end",
)


class RootCallback(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is untyped
    """Makes callbacks on rank 0, and calls them there.

    For what reports to a server or a store: one run for all workers, which goes on when rank 0
    changes. Then the new rank 0 makes callbacks of its own, whose `on_train_begin` is called, and
    the calls that the former one may not have come to are made again: a value may be reported twice
    with the same step or epoch. In plain `fit`, and alone, they are made when the training begins.

    Args:
      make: makes a callback, or several. It opens the tracker's run by a name that all workers
        know, or goes on with it.
      repeat_epochs: whether a new rank 0 reports the logs of all finished epochs again, to a
        tracker that loses what a killed process has told it.

    Example:

        def report():
            wandb.init(project="digits", id="run-7", resume="allow")
            return WandbMetricsLogger()

        model.fit(x, y, callbacks=[ElasticCallback(), RootCallback(report)])
    """

    def __init__(
        self,
        make: Callable[[], keras.callbacks.Callback | Sequence[keras.callbacks.Callback]],
        *,
        repeat_epochs: bool = False,
    ) -> None:
        super().__init__()
        self.repeat_epochs = repeat_epochs
        self._make = make
        self._made: list[keras.callbacks.Callback] = []

    def on_train_begin(self, logs: Any = None) -> None:
        """Makes the callbacks and begins them: this is rank 0."""
        made = self._make()
        self._made = [made] if isinstance(made, keras.callbacks.Callback) else list(made)
        for callback in self._made:
            callback.set_params(self.params)
            callback.set_model(self.model)
            callback.on_train_begin(logs)

    def _hand_on(self, hook: str, *arguments: Any, **logs: Any) -> None:
        for callback in self._made:
            getattr(callback, hook)(*arguments, **logs)


def _handing_on(hook: str) -> Callable[..., None]:
    def call(self: RootCallback, *arguments: Any, **logs: Any) -> None:
        self._hand_on(hook, *arguments, **logs)

    call.__name__ = hook
    return call


for _hook in HOOKS:
    setattr(RootCallback, _hook, _handing_on(_hook))
