"""The state of a training goes from rank 0 to a joiner, whole or not at all."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import msgspec
import numpy as np
import pytest
import tensorflow as tf

from hvd_elastic_keras.common.errors import CollectiveFailedError, ConfigurationError
from hvd_elastic_keras.common.protocol import ALONE
from hvd_elastic_keras.keras_internals.learning_rate import Ramp
from hvd_elastic_keras.keras_internals.model_variables import variables_of
from hvd_elastic_keras.loop.callback_runner import CallbackRunner
from hvd_elastic_keras.state import broadcast, packing, run_state
from hvd_elastic_keras.state.cursor import Cursor, Phase
from hvd_elastic_keras.state.parts import UserState
from hvd_elastic_keras.state.run_state import VERSION, Marks, RunState
from hvd_elastic_keras.worker.transfer.arrival import Arrival

CURSOR = Cursor(
    epoch=2, phase=Phase.EVALUATE, step=3, global_step=40, progress=47, worker_batches=1
)


class Wire:
    """Stands for Horovod: what rank 0 sends is what the next one receives."""

    def __init__(self) -> None:
        self.sent = b""
        self.tensors: list[tf.Tensor] = []
        self.breaks = False

    @contextlib.contextmanager
    def collective(self) -> Iterator[None]:
        yield

    def broadcast_bytes(self, data: bytes, name: str) -> bytes:
        self.sent = data or self.sent
        return self.sent

    def broadcast_tensors(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        if self.breaks:
            raise CollectiveFailedError("a peer is gone")
        self.tensors = self.tensors or list(tensors)
        assert [(t.shape, t.dtype) for t in tensors] == [(t.shape, t.dtype) for t in self.tensors]
        return self.tensors


class Data:
    """An input, as far as it is compared."""

    num_examples, batches_per_pass, ends_unannounced = 80, 10, False

    def first_batch(self) -> Any:
        return np.arange(8)

    def know_batches_per_pass(self, count: int | None) -> None:
        assert count == self.batches_per_pass

    def expect_batches_per_pass(self, count: int | None) -> None:
        self.know_batches_per_pass(count)


class Remembers(keras.callbacks.Callback):
    """Remembers an array."""

    def __init__(self, best: float) -> None:
        super().__init__()
        self.best = np.full(1000, best)


def new_state(
    value: float,
    width: int = 3,
    collectives: str = "one",
    configuration: tuple[str, ...] = ("D:1",),
) -> RunState:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(width)])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    model.stop_training = False
    for variable in model.trainable_variables:
        variable.assign(tf.fill(variable.shape, value))
    return RunState(
        model,
        variables_of(model),
        CallbackRunner([Remembers(value)], model, params={}),
        inputs=[Data()],  # type: ignore[list-item]
        cursor=Cursor(),
        user=UserState(best=value),
        collectives=collectives,
        configuration=configuration,
    )


def root_state() -> RunState:
    """A state that differs from a new one in every part."""
    state = new_state(1.0)
    state.cursor, state.unfinished = CURSOR, dataclasses.replace(CURSOR, step=9)
    state.marks = Marks(epoch_begun=2, batch_begun=46, evaluation_begun=2, stop_agreed=True)
    state.ramp = Ramp(1.0, 2.0, 30, 5)
    state.slowness = {"w1": 1.5}
    state.epoch_logs, state.evaluation_logs = {"loss": 0.5}, {"loss": np.float32(0.25)}
    return state


def sync(state: RunState, wire: Any, rank: int) -> None:
    place = msgspec.structs.replace(ALONE, rank=rank, size=2, sync=True)
    state.synchronise(wire, place)


def sync_to(joiner: RunState, wire: Wire) -> None:
    sync(root_state(), wire, rank=0)
    sync(joiner, wire, rank=1)


def values(state: RunState) -> list[Any]:
    return [v.numpy() for v in state.variables.all]


@pytest.mark.parametrize("same", [True, False])
def test_callbacks_that_write_elsewhere_than_those_of_rank_0_are_told_of(
    same: bool, told: list[str], tmp_path: Path
) -> None:
    root, joiner, wire = root_state(), new_state(0.0), Wire()
    for state, run in ((root, 1), (joiner, 1 if same else 2)):
        curves = keras.callbacks.TensorBoard(tmp_path / f"runs/{run}")
        callbacks = [curves, keras.callbacks.CSVLogger(tmp_path / "log.csv")]
        state.hand_over(CallbackRunner(callbacks, keras.Model(), params=None), state.user)
    sync(root, wire, rank=0)
    sync(joiner, wire, rank=1)
    texts = [text for text in told if "differ from worker to worker" in text]
    assert len(texts) == (not same)
    assert all("(TensorBoard)" in text and "/runs/1" in text for text in texts)


def test_a_joiner_gets_every_part_and_variable() -> None:
    joiner = new_state(0.0)
    sync_to(joiner, Wire())
    np.testing.assert_equal(joiner.state(), root_state().state())
    assert (joiner.cursor, joiner.user.best, joiner.exists) == (CURSOR, 1.0, True)
    for found, expected in zip(values(joiner), values(root_state()), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_no_part_of_the_two_states_is_the_same_before() -> None:
    new, root = new_state(0.0).state(), root_state().state()
    same = {name for name in root if new[name] == root[name]}
    assert same == {"version", "data", "stop_training"}
    stopped = root_state()
    # Whatever a callback has set it to.
    stopped._parts["stop_training"].owner.stop_training = object()  # type: ignore[attr-defined]
    joiner = new_state(0.0)
    joiner.restore(stopped.state())
    assert joiner.state()["stop_training"] is True


def test_who_is_as_far_as_the_root_keeps_its_own() -> None:
    peer = root_state()
    peer.exists, peer.user.mine = True, 7
    sync_to(peer, Wire())
    assert peer.user.mine == 7


def test_an_interrupted_sync_changes_nothing() -> None:
    wire, joiner = Wire(), new_state(0.0)
    sync(root_state(), wire, rank=0)
    before = joiner.state()
    wire.breaks = True
    with pytest.raises(CollectiveFailedError):
        sync(joiner, wire, rank=1)
    np.testing.assert_equal(joiner.state(), before)
    assert not joiner.exists


def test_another_model_is_refused_before_anything_changes() -> None:
    joiner = new_state(0.0, width=4)
    before = joiner.state()
    with pytest.raises(ConfigurationError, match=r"The state of rank 0 holds .*same script"):
        sync_to(joiner, Wire())
    np.testing.assert_equal(joiner.state(), before)


def test_another_version_from_rank_0_is_refused_before_anything_changes() -> None:
    wire, joiner = Wire(), new_state(0.0)
    sync(root_state(), wire, rank=0)
    wire.sent = packing.pack({**packing.unpack(wire.sent), "version": 99})
    before = joiner.state()
    message = rf"sent a state of version 99, expected {VERSION}\. Use the same release"
    with pytest.raises(ConfigurationError, match=message):
        sync(joiner, wire, rank=1)
    np.testing.assert_equal(joiner.state(), before)


def test_another_version_in_a_checkpoint_is_refused_with_its_path() -> None:
    message = rf"The checkpoint step-8 holds .* version 3, expected {VERSION}\..*another job_dir"
    with pytest.raises(ConfigurationError, match=message):
        new_state(0.0).restore({**root_state().state(), "version": 3}, Path("step-8"))


def test_a_worker_with_another_step_is_refused_before_anything_changes() -> None:
    joiner = new_state(0.0, collectives="two")
    before = joiner.state()
    with pytest.raises(ConfigurationError, match="not that of rank 0: they would wait"):
        sync_to(joiner, Wire())
    np.testing.assert_equal(joiner.state(), before)


@pytest.mark.parametrize(
    ("configuration", "told"),
    [
        (("D:2",), "configures one D in another way"),
        (("E:1",), "has E in place of D"),
        (("D:1", "E:1"), "has E in place of nothing"),
    ],
)
def test_a_worker_with_another_model_is_refused_before_anything_changes(
    configuration: tuple[str, ...], told: str
) -> None:
    joiner = new_state(0.0, configuration=configuration)
    before = joiner.state()
    with pytest.raises(ConfigurationError, match=f"not that of rank 0: it {told}"):
        sync_to(joiner, Wire())
    np.testing.assert_equal(joiner.state(), before)


def test_a_checkpoint_of_a_model_that_has_changed_is_taken() -> None:
    changed = new_state(0.0, collectives="two", configuration=("D:2",))
    changed.restore(root_state().state(), Path("step-8"))
    assert changed.cursor == CURSOR


def test_arrays_travel_as_bytes() -> None:
    wire = Wire()
    sync(root_state(), wire, rank=0)
    assert np.full(1000, 1.0).tobytes() in wire.sent


def test_survivors_of_a_kill_who_are_level_send_and_receive_nothing() -> None:
    wire, survivors = Wire(), [root_state(), root_state()]
    for rank, survivor in enumerate(survivors):
        survivor.exists = True
        place = msgspec.structs.replace(ALONE, rank=rank, size=2, sync=False)
        survivor.synchronise(wire, place)  # type: ignore[arg-type]
    assert (wire.sent, wire.tensors) == (b"", [])


# --- variables that come late ----------------------------------------------------------------


def goes_on_without(
    monkeypatch: pytest.MonkeyPatch, fetch: Callable[[], list[tf.Tensor]]
) -> RunState:
    """A joiner that has the root's state but for its variables, which are on their way."""
    root = root_state()
    told = {**root.state(), broadcast.SPECS: broadcast.specs_of(root.variables.groups)}

    def from_root(*_: Any, **__: Any) -> tuple[dict[str, Any], Arrival]:
        return packing.unpack(packing.pack(told)), Arrival(late_ranks=[1], fetch=fetch)

    monkeypatch.setattr(broadcast, "from_root", from_root)
    joiner = new_state(0.0)
    joiner.may_be_late = lambda: True
    sync(joiner, None, rank=1)
    return joiner


def test_variables_that_come_late_make_the_state_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    joiner = goes_on_without(monkeypatch, fetch=root_state().variables.values)
    assert (joiner.cursor, joiner.exists, joiner.is_late) == (CURSOR, False, True)
    joiner.arrive()
    assert (joiner.exists, joiner.is_late) == (True, False)
    for found, expected in zip(values(joiner), values(root_state()), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_without_its_variables_a_state_is_taken_back_and_the_next_time_all_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fetch() -> list[tf.Tensor]:
        raise CollectiveFailedError("a peer is gone")

    joiner = goes_on_without(monkeypatch, fetch)
    with pytest.raises(CollectiveFailedError):
        joiner.arrive()
    joiner.end_sync()
    np.testing.assert_equal(joiner.state(), new_state(0.0).state())
    for found, expected in zip(values(joiner), values(new_state(0.0)), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert (joiner.exists, joiner.is_late, joiner.may_be_late()) == (False, False, False)


@pytest.mark.parametrize(
    ("cursor", "expected"),
    [
        (Cursor(step=3, progress=3), True),
        (Cursor(), False),  # `on_epoch_begin` comes first, which may change what it likes
        (Cursor(phase=Phase.EVALUATE, step=3), False),
    ],
)
def test_variables_come_late_only_where_nobody_looks_at_them_before_the_step(
    monkeypatch: pytest.MonkeyPatch, cursor: Cursor, expected: bool
) -> None:
    monkeypatch.setattr(run_state, "LEAST_LATE_BYTES", 0)
    joiner = new_state(0.0)
    joiner.may_be_late = lambda: True
    told = {"cursor": cursor.to_json()}
    assert joiner._may_be_late(told) is expected
    joiner.exists = True  # a step behind
    assert not joiner._may_be_late(told)
