"""Values of the user's that follow every commit."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("keras")

from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.state import packing
from hvd_elastic_keras.state.parts import UserState, UserValues


def test_values_travel_to_another_worker() -> None:
    state = UserState(batch=3, best={"loss": 0.5}, seen=[1, (2, "a")], weights=np.arange(3))
    other = UserState()
    UserValues(other).restore(UserValues(state).state())
    assert (other.batch, other.best, other.seen) == (3, {"loss": 0.5}, [1, (2, "a")])
    np.testing.assert_array_equal(other.weights, np.arange(3))


def test_a_value_that_cannot_travel_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match=r"state.file was set to a TextIOWrapper"):
        UserState().file = open(__file__)  # noqa: SIM115


def test_a_failed_step_leaves_no_trace_in_the_values() -> None:
    state = UserState(count=1, seen=[])

    def step(fails: bool) -> None:
        with state.atomic():
            state.count += 1
            state.seen.append(state.count)
            if fails:
                raise ConnectionError

    with pytest.raises(ConnectionError):
        step(fails=True)
    assert (state.count, state.seen) == (1, [])
    step(fails=False)
    assert (state.count, state.seen) == (2, [2])


def test_a_failed_step_leaves_no_new_value_and_no_changed_array() -> None:
    state = UserState(sums=np.zeros(3))

    def step() -> None:
        with state.atomic():
            state.sums += 1
            state.found = True
            raise ConnectionError

    with pytest.raises(ConnectionError):
        step()
    assert state.sums.tolist() == [0.0, 0.0, 0.0]
    assert not hasattr(state, "found")


def test_arrays_are_kept_and_sent_as_bytes() -> None:
    values = np.random.default_rng(1).random(100_000)
    assert len(packing.pack(UserValues(UserState(values=values)).state())) < values.nbytes + 1000


def test_reset_callbacks_are_called_in_order() -> None:
    called: list[str] = []
    state = UserState()
    state.register_reset_callbacks([lambda: called.append("a"), lambda: called.append("b")])
    state.on_reset()
    assert called == ["a", "b"]
