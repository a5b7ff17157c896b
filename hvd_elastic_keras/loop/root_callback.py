"""`RootCallback`: callbacks that exist on rank 0 only, such as reports to a tracker."""

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

    Use it for callbacks that report to a server or a store. All workers share one run there, which
    goes on when rank 0 changes. The new rank 0 then makes callbacks of its own and calls their
    `on_train_begin`. It also repeats the calls that the former rank 0 may not have finished, so a
    value may be reported twice with the same step or epoch. In plain `fit`, and with one worker,
    the callbacks are made when the training begins.

    Args:
      make: makes one callback or several. It opens the tracker's run by a name that all workers
        know, or goes on with that run.
      repeat_epochs: whether a new rank 0 reports the logs of all finished epochs again. For a
        tracker that loses the reports of a killed process.

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
        """Makes the callbacks and begins them. Called on rank 0 only."""
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
