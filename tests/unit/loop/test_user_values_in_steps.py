"""A step copies the user's values only if the user's own code runs in it."""

from __future__ import annotations

from typing import Any

import pytest

keras = pytest.importorskip("keras")
np = pytest.importorskip("numpy")
tf = pytest.importorskip("tensorflow")
pytest.importorskip("horovod.tensorflow")

from hvd_elastic_keras import ElasticCallback
from hvd_elastic_keras.state.parts import UserState


@keras.saving.register_keras_serializable("tests")
class Called(keras.layers.Layer):
    """Passes its input on, and calls Python on the way."""

    def call(self, x: Any) -> Any:
        """Returns the input."""
        with tf.control_dependencies([tf.py_function(lambda: None, [], [])]):
            return tf.identity(x)


@pytest.mark.parametrize(
    ("eager", "layers", "steps_with_copies"),
    [(False, [], 0), (True, [], 2), (False, [Called], 2)],
    ids=["compiled", "eager", "compiled, and calls Python"],
)
def test_user_values_are_copied_only_in_steps_that_may_change_them(
    eager: bool, layers: list[Any], steps_with_copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = []
    atomic = UserState.atomic

    def noted(self: UserState) -> Any:
        copies.append(self)
        return atomic(self)

    monkeypatch.setattr(UserState, "atomic", noted)
    model = keras.Sequential(
        [keras.Input((2,)), *(layer() for layer in layers), keras.layers.Dense(1)]
    )
    model.compile("sgd", "mse", run_eagerly=eager)
    callback = ElasticCallback(micro_batch_size=4)
    callback.state.table = np.zeros(1000)
    model.fit(np.ones([8, 2]), np.ones([8, 1]), batch_size=4, verbose=0, callbacks=[callback])
    assert len(copies) == steps_with_copies
