"""Commit, restore and sync of an elastic state, without any launcher or second process."""

from __future__ import annotations

import contextlib
import dataclasses
import types
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import msgspec
import numpy as np
import pytest
import tensorflow as tf

import hvd_elastic_keras.horovod as hvd
from hvd_elastic_keras import elastic
from hvd_elastic_keras.api.elastic_loop import elastic_run, elastic_state
from hvd_elastic_keras.common.errors import (
    CollectiveFailedError,
    ConfigurationError,
    TrainingOverError,
    WorkerLeavingError,
)
from hvd_elastic_keras.common.protocol import ALONE, Assignment
from hvd_elastic_keras.state import json_codec, packing
from hvd_elastic_keras.worker.horovod_runtime import Communicator
from hvd_elastic_keras.worker.membership import Membership
from hvd_elastic_keras.worker.rounds import ProcessRounds
from hvd_elastic_keras.worker.session import EntryReport, SoloSession


class Wire:
    """Stands for Horovod: what rank 0 sends is what the next one receives."""

    def __init__(self) -> None:
        self.sent: bytes = b""
        self.tensors: list[tf.Tensor] = []
        self.is_root = True
        self.breaks = False
        self.someone_knows = False

    @contextlib.contextmanager
    def collective(self) -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        yield

    def start(self, place: Assignment) -> None: ...

    def start_alone(self) -> None: ...

    def shut_down(self) -> None: ...

    def barrier(self, name: str) -> None: ...

    def any_true(self, flag: bool, name: str) -> bool:
        return flag or self.someone_knows

    def broadcast_bytes(self, data: bytes, name: str) -> bytes:
        self.sent = data if self.is_root else self.sent
        return self.sent

    def broadcast_tensors(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        if self.breaks:
            raise CollectiveFailedError("a peer is gone")
        if self.is_root:
            self.tensors = list(tensors)
        assert [(t.shape, t.dtype) for t in tensors] == [(t.shape, t.dtype) for t in self.tensors]
        return self.tensors


class Session(SoloSession):
    """Hands out the places (or errors) that a test has written down."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[Assignment | Exception] = []
        self.reports: list[EntryReport] = []
        self.finishes = 0
        self.change_pending = False

    def enter(self, report: EntryReport) -> Assignment:
        self.reports.append(report)
        self.change_pending = False
        place = self.places.pop(0) if self.places else ALONE
        if isinstance(place, Exception):
            raise place
        return place

    def finish(self) -> None:
        self.finishes += 1


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture(autouse=True)
def rounds(monkeypatch: pytest.MonkeyPatch, wire: Wire, session: Session) -> ProcessRounds:
    rounds = ProcessRounds(Membership(session, environment=None), wire)
    monkeypatch.setattr(elastic_state, "rounds_of_process", lambda: rounds)
    monkeypatch.setattr(elastic_run, "rounds_of_process", lambda: rounds)
    return rounds


def place(rank: int, size: int, round_number: int = 1) -> Assignment:
    return msgspec.structs.replace(ALONE, rank=rank, size=size, round=round_number, sync=True)


def model(seed: int = 0) -> keras.Model:
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(3), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    return keras.Sequential([keras.Input((2,)), *layers])


def train_a_little(state: elastic.ElasticState) -> None:
    for variable in state.model.trainable_variables:
        variable.assign_add(tf.ones_like(variable.value))
    state.model(tf.ones([4, 2]), training=True)
    gradients = [tf.ones_like(v.value) for v in state.model.trainable_variables]
    state.optimizer.apply(gradients, state.model.trainable_variables)


def numbers(state: elastic.ElasticState) -> list[np.ndarray]:
    variables = [*state.model.variables, *state.optimizer.variables]
    return [v.value.numpy() for v in variables]


def assert_equal(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def sync(state: elastic.ElasticState, wire: Wire, rounds: ProcessRounds, rank: int) -> None:
    wire.is_root = rank == 0
    rounds.place = place(rank, 2)
    state.sync()


# --- commit and restore ------------------------------------------------------------------


def test_restore_goes_back_to_the_last_commit_in_every_variable_and_value() -> None:
    state = elastic.ElasticState(model(), keras.optimizers.Adam(), batch=0, losses=[])
    train_a_little(state)
    state.batch, state.losses = 3, [1.0]
    state.commit()
    committed = numbers(state)
    train_a_little(state)
    state.batch = 7
    state.losses.append(2.0)  # in place: the commit must hold a copy
    state.restore()
    assert_equal(numbers(state), committed)
    assert (state.batch, state.losses, state.commits) == (3, [1.0], 1)


def test_before_the_first_commit_restore_goes_back_to_the_beginning() -> None:
    state = elastic.ElasticState(model(), keras.optimizers.SGD(momentum=0.9), batch=0)
    beginning = numbers(state)
    train_a_little(state)
    state.batch = 5
    state.restore()
    assert_equal(numbers(state), beginning)
    assert state.batch == 0


def test_a_variable_that_is_changed_in_place_after_a_commit_is_restored() -> None:
    variable = tf.Variable([1.0, 2.0])
    state = elastic.TensorFlowState([variable], step=0)
    variable.assign_add([1.0, 1.0])
    variable[0].assign(9.0)
    variable.scatter_nd_update([[1]], [7.0])
    state.restore()
    np.testing.assert_array_equal(variable, [1.0, 2.0])


def test_a_learning_rate_and_slots_of_an_optimizer_that_was_not_built_are_restored() -> None:
    optimizer = keras.optimizers.Adam(0.1)
    assert not optimizer.built
    state = elastic.TensorFlowKerasState(model(), optimizer)
    assert optimizer.built
    optimizer.learning_rate.assign(0.5)
    state.restore()
    assert float(optimizer.learning_rate) == pytest.approx(0.1)


def test_variables_inside_a_loss_scale_optimizer_are_restored() -> None:
    inner = keras.optimizers.Adam(0.1)
    state = elastic.ElasticState(model(), keras.optimizers.LossScaleOptimizer(inner))
    inner.learning_rate.assign(0.5)
    state.restore()
    assert float(inner.learning_rate) == pytest.approx(0.1)


def test_a_compiled_model_brings_its_optimizer_and_metrics() -> None:
    compiled = model()
    compiled.compile("adam", "mse")
    state = elastic.ElasticState(compiled)
    assert state.optimizer is compiled.optimizer
    compiled.metrics[0].update_state(3.0)
    state.restore()
    assert float(compiled.metrics[0].count) == 0.0


@pytest.mark.parametrize(
    "value",
    [
        *(0, -1.5, "text", None, True, float("inf"), float("nan")),
        *([1, [2]], (1, 2), {"a": {"b": [1]}}),
        *(np.arange(6, dtype=np.int8).reshape(2, 3), {"best": np.zeros((2, 0))}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_plain_values_come_back_after_a_restore(value: Any) -> None:
    state = elastic.ElasticState(value=value)
    state.value = "changed"
    state.restore()
    np.testing.assert_equal(state.value, value)
    assert type(state.value) is type(value)


def test_a_numpy_scalar_comes_back_as_one() -> None:
    state = elastic.ElasticState(best=np.float32(0.5))
    state.restore()
    assert (state.best, type(state.best)) == (0.5, np.float32)


class Counts(keras.layers.Layer):
    """Counts its calls in a `tf.Variable` that Keras does not know of."""

    def __init__(self, **more: Any) -> None:
        super().__init__()
        self.calls = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.more = more

    def call(self, inputs: Any) -> Any:
        self.calls.assign_add(1)
        return inputs


def counting(**more: Any) -> keras.Model:
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), Counts(**more)])


def test_restore_takes_back_what_a_failed_step_did_to_a_raw_variable_of_a_layer() -> None:
    state = elastic.ElasticState(counting(), batch=0)
    calls = state.model.layers[-1].calls
    calls.assign(150)
    state.commit()
    calls.assign_add(1)
    state.restore()
    assert int(calls) == 150


def test_a_joiner_gets_the_raw_variables_of_layers(wire: Wire, rounds: ProcessRounds) -> None:
    root, joiner = (elastic.ElasticState(counting()) for _ in range(2))
    root.model.layers[-1].calls.assign(401)
    joiner.model.layers[-1].calls.assign(49)
    sync(root, wire, rounds, rank=0)
    sync(joiner, wire, rounds, rank=1)
    assert int(joiner.model.layers[-1].calls) == 401


class Lazy(keras.layers.Layer):
    """Makes a `tf.Variable` at its first call only."""

    calls: tf.Variable | None = None

    def call(self, inputs: Any) -> Any:
        if self.calls is None and tf.executing_eagerly():
            self.calls = tf.Variable(0, dtype=tf.int64, trainable=False)
        return inputs


def test_a_joiner_that_has_not_made_all_raw_variables_takes_over_the_others(
    wire: Wire, rounds: ProcessRounds
) -> None:
    models = [
        keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), Counts(), Lazy()])
        for _ in range(2)
    ]
    root, joiner = (elastic.ElasticState(m) for m in models)
    models[0].layers[-1](tf.zeros((1, 3)))
    models[0].layers[-2].calls.assign(401)
    sync(root, wire, rounds, rank=0)
    sync(joiner, wire, rounds, rank=1)
    assert int(models[1].layers[-2].calls) == 401


def test_raw_variables_that_cannot_be_sent_are_named(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(session.reporter, "show", told.append)
    names = tf.Variable(["a"], name="names")
    session.places = [place(0, 1), place(0, 1, 2)]
    elastic.run(lambda _: None)(elastic.ElasticState(counting(names=names)))
    assert len(told) == 1
    assert "not part of the elastic state: names:0 (string (1,))" in told[0]


class Held(keras.layers.Layer):
    """A layer with an optimizer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizer = keras.optimizers.Adam(0.5)

    def call(self, inputs: Any) -> Any:
        return inputs


def adversarial() -> keras.Model:
    """Holds all kinds of variables in attributes and containers, as GANs do."""
    net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), Held()])
    net.d_optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1))
    net.others = {"g": [keras.optimizers.SGD(0.1, momentum=0.9)]}
    net.pair = (keras.optimizers.RMSprop(0.1), tf.Variable(0.0))
    net.parts = types.SimpleNamespace(
        optimizer=keras.optimizers.Adam(0.2),
        metric=keras.metrics.Mean(),
        seed=keras.random.SeedGenerator(3),
        weight=keras.Variable(1.0),
    )
    net.inner = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    net.inner.compile(keras.optimizers.Adam(0.3), "mse")
    net.inner.seen = keras.metrics.Mean()
    return net


def held_values(net: keras.Model) -> list[Any]:
    """Of what Keras does not list in `net.variables`."""
    optimizers = [
        *(net.layers[-1].optimizer, net.d_optimizer, net.d_optimizer.inner_optimizer),
        *(net.others["g"][0], net.pair[0], net.parts.optimizer, net.inner.optimizer),
    ]
    owners = (*optimizers, net.inner.seen, net.parts.metric)
    loose = (net.parts.seed.state, net.parts.weight)
    return [
        *(v.value for owner in owners for v in owner.variables),
        *(v.value for v in loose),
        net.pair[1],
    ]


def change_all(net: keras.Model) -> None:
    for variable in held_values(net):
        variable.assign(variable + tf.ones_like(variable))


def test_what_a_model_holds_in_attributes_and_containers_is_restored() -> None:
    state = elastic.ElasticState(adversarial())
    before = [v.numpy() for v in held_values(state.model)]
    change_all(state.model)
    state.restore()
    assert_equal([v.numpy() for v in held_values(state.model)], before)


def test_a_joiner_gets_what_a_model_holds_in_attributes_and_containers(
    wire: Wire, rounds: ProcessRounds
) -> None:
    root, joiner = (elastic.ElasticState(adversarial()) for _ in range(2))
    change_all(root.model)
    sync(root, wire, rounds, rank=0)
    sync(joiner, wire, rounds, rank=1)
    found, expected = ([v.numpy() for v in held_values(s.model)] for s in (joiner, root))
    assert_equal(found, expected)


def test_slots_of_an_optimizer_that_a_model_holds_are_restored() -> None:
    net = adversarial()
    state = elastic.ElasticState(net, keras.optimizers.SGD())
    targets = net.trainable_variables
    net.d_optimizer.apply([tf.ones_like(v.value) for v in targets], targets)
    assert float(net.d_optimizer.inner_optimizer.iterations) == 1.0
    state.restore()
    slots = net.d_optimizer.inner_optimizer.variables[2:]
    assert slots
    assert all(not v.numpy().any() for v in slots)


def test_an_optimizer_that_came_after_the_last_commit_is_refused_at_a_restore() -> None:
    state = elastic.ElasticState(model(), batch=0)
    state.model.late = keras.optimizers.Adam(0.1, name="late_one")
    with pytest.raises(ConfigurationError, match=r"late_one/.*before the elastic state is made"):
        state.restore()
    state.commit()
    state.model.late.learning_rate.assign(0.5)
    state.restore()
    assert float(state.model.late.learning_rate) == pytest.approx(0.1)


def test_a_joiner_gets_the_weights_of_layers_that_the_root_has_frozen(
    wire: Wire, rounds: ProcessRounds
) -> None:
    root, joiner = (elastic.ElasticState(model(seed)) for seed in (0, 1))
    root.model.layers[0].trainable = False
    sync(root, wire, rounds, rank=0)
    sync(joiner, wire, rounds, rank=1)
    weights = ([v.value.numpy() for v in s.model.variables] for s in (joiner, root))
    assert_equal(*weights)


def test_a_joiner_without_an_optimizer_of_the_root_is_refused(
    wire: Wire, rounds: ProcessRounds
) -> None:
    root, joiner = (elastic.ElasticState(model()) for _ in range(2))
    root.model.late = keras.optimizers.Adam()
    sync(root, wire, rounds, rank=0)
    with pytest.raises(ConfigurationError, match=r"in the group 'optimizer'.*same model and optim"):
        sync(joiner, wire, rounds, rank=1)


@pytest.mark.parametrize(
    "held",
    [
        tf.random.Generator.from_seed(1),
        tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0),
    ],
    ids=lambda held: type(held).__name__,
)
def test_generators_and_tables_that_cannot_be_sent_are_named(held: Any) -> None:
    net = model()
    assert not elastic.ElasticState(net).unsendable_warning()
    net.texts = keras.layers.TextVectorization()
    assert not elastic.ElasticState(net).unsendable_warning(), "Keras counts words in `adapt` alone"
    net.layers[0].held = [held]
    assert f"a tf.{type(held).__name__}" in elastic.ElasticState(net).unsendable_warning()


# --- what is refused ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [object(), {1: object()}, [lambda: None], tf.Variable(1.0)],
    ids=lambda value: type(value).__name__,
)
def test_a_value_that_does_not_travel_is_refused_with_its_name(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"'history' of an elastic state .* not travel"):
        elastic.ElasticState(history=value)
    state = elastic.ElasticState(history=0, batch=1)
    state.batch, state.history = 2, value
    with pytest.raises(ConfigurationError, match="'history'"):
        state.commit()
    state.restore()
    assert (state.history, state.batch, state.commits) == (0, 1, 0)


@pytest.mark.parametrize(
    "name", ["commit", "sync", "num_commits", "fit_position", "_kept", "progress"]
)
def test_a_value_cannot_have_a_name_that_the_state_uses(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name!r}.*another name"):
        elastic.ElasticState(**{name: 1})


def test_a_model_without_variables_is_refused_with_the_remedy() -> None:
    unbuilt = keras.Sequential([keras.layers.Dense(3)])
    with pytest.raises(ConfigurationError, match=r"not built.*keras\.Input"):
        elastic.ElasticState(unbuilt)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "resnet"}, r"model is a builtins\.str"),
        ({"optimizer": "adam"}, r"optimizer is a builtins\.str"),
        ({"variables": [1.0]}, "variables contains 1.0"),
        ({"variables": [tf.Variable("text")]}, "expected numeric"),
        ({"variables": [tf.Variable([1.0], shape=[None])]}, "of a fixed shape"),
    ],
)
def test_other_arguments_of_a_wrong_type_are_refused(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        elastic.ElasticState(**arguments)


def test_commits_may_be_a_value_of_the_users_own(wire: Wire, rounds: ProcessRounds) -> None:
    root = elastic.ElasticState(commits=0)
    root.commits += 3
    root.commit()
    sync(root, wire, rounds, rank=0)
    joiner = elastic.ElasticState(commits=0)
    sync(joiner, wire, rounds, rank=1)
    assert (joiner.commits, joiner.num_commits, joiner.progress) == (3, 1, 1)
    joiner.commits = 9
    joiner.restore()
    assert joiner.commits == 3


def test_a_state_of_no_variables_and_the_drivers_method_say_what_to_write() -> None:
    with pytest.raises(ConfigurationError, match=r"TensorFlowState\(\[variable"):
        elastic.TensorFlowState()
    with pytest.raises(ConfigurationError, match="Leave it out"):
        elastic.ElasticState().on_hosts_updated(1, 2)


# --- sync --------------------------------------------------------------------------------


def test_a_joiner_with_another_optimizer_state_gets_all_of_the_root(
    wire: Wire, rounds: ProcessRounds
) -> None:
    root = elastic.ElasticState(model(0), keras.optimizers.Adam(), epoch=0, best=np.zeros(2))
    train_a_little(root)
    root.epoch, root.best = 2, np.array([0.25, 0.5])
    root.commit()
    joiner = elastic.ElasticState(model(1), keras.optimizers.Adam(), epoch=0, best=np.zeros(2))
    sync(root, wire, rounds, rank=0)
    sync(joiner, wire, rounds, rank=1)
    assert_equal(numbers(joiner), numbers(root))
    assert (joiner.epoch, joiner.commits, joiner.exists) == (2, 1, True)
    np.testing.assert_array_equal(joiner.best, [0.25, 0.5])
    # What was received is kept as well.
    train_a_little(joiner)
    joiner.epoch = 9
    joiner.restore()
    assert_equal(numbers(joiner), numbers(root))
    assert joiner.epoch == 2


def test_an_interrupted_sync_changes_nothing(wire: Wire, rounds: ProcessRounds) -> None:
    root = elastic.ElasticState(model(0), keras.optimizers.SGD(), epoch=2)
    sync(root, wire, rounds, rank=0)
    joiner = elastic.ElasticState(model(1), keras.optimizers.SGD(), epoch=0)
    before = numbers(joiner)
    wire.breaks = True
    with pytest.raises(CollectiveFailedError):
        sync(joiner, wire, rounds, rank=1)
    assert_equal(numbers(joiner), before)
    assert (joiner.epoch, joiner.exists) == (0, False)


def test_metrics_that_only_the_root_has_made_do_not_matter(
    wire: Wire, rounds: ProcessRounds
) -> None:
    states = []
    for _ in range(2):
        compiled = model()
        compiled.compile("sgd", "mse", metrics=["mae"])
        states.append(elastic.ElasticState(compiled))
    states[0].model.train_on_batch(np.ones((4, 2)), np.ones((4, 3)))
    sync(states[0], wire, rounds, rank=0)
    sync(states[1], wire, rounds, rank=1)
    assert_equal(numbers(states[1]), numbers(states[0]))


def test_a_state_of_another_model_is_refused_before_anything_changes(
    wire: Wire, rounds: ProcessRounds
) -> None:
    root = elastic.ElasticState(model(), keras.optimizers.SGD())
    sync(root, wire, rounds, rank=0)
    other = elastic.ElasticState(
        keras.Sequential([keras.Input((2,)), keras.layers.Dense(4)]), keras.optimizers.SGD()
    )
    before = numbers(other)
    with pytest.raises(ConfigurationError, match=r"group 'layers'.*same model"):
        sync(other, wire, rounds, rank=1)
    assert_equal(numbers(other), before)


def test_a_state_with_other_values_is_refused(wire: Wire, rounds: ProcessRounds) -> None:
    sync(elastic.ElasticState(epoch=0), wire, rounds, rank=0)
    with pytest.raises(ConfigurationError, match=r"\['epoch'\].*\['batch'\].*same script"):
        sync(elastic.ElasticState(batch=0), wire, rounds, rank=1)


def test_what_travels_is_plain_json_and_bytes(wire: Wire, rounds: ProcessRounds) -> None:
    best = np.arange(1000.0)
    sync(elastic.ElasticState(model(), epoch=1, best=best), wire, rounds, rank=0)
    assert wire.sent.endswith(best.tobytes())
    content = packing.unpack(wire.sent)
    assert content["version"] == elastic_state.VERSION
    assert content["values"] == {"epoch": 1, "best": json_codec.encode(best)}


def test_a_state_of_another_version_is_refused_before_anything_changes(
    wire: Wire, rounds: ProcessRounds
) -> None:
    sync(elastic.ElasticState(epoch=3), wire, rounds, rank=0)
    wire.sent = packing.pack({**packing.unpack(wire.sent), "version": 99})
    joiner = elastic.ElasticState(epoch=0)
    message = rf"sent a state of version 99, expected {elastic_state.VERSION}\. Use the same rel"
    with pytest.raises(ConfigurationError, match=message):
        sync(joiner, wire, rounds, rank=1)
    assert (joiner.epoch, joiner.exists) == (0, False)


@dataclasses.dataclass(frozen=True)
class Settings:
    """A value of the user's."""

    rate: float = 0.1


def test_values_of_a_class_that_is_not_there_change_nothing(
    wire: Wire, rounds: ProcessRounds
) -> None:
    states = [
        elastic.ElasticState(model(), keras.optimizers.SGD(), batch=batch, best=Settings())
        for batch in (7, 0)
    ]
    sync(states[0], wire, rounds, rank=0)
    wire.sent = wire.sent.replace(b"Settings", b"Yettings")
    before = numbers(states[1])
    with pytest.raises(ConfigurationError, match="Yettings"):
        sync(states[1], wire, rounds, rank=1)
    assert_equal(numbers(states[1]), before)
    assert (states[1].batch, states[1].best) == (0, Settings())


# --- the loop ----------------------------------------------------------------------------


def test_the_function_gets_its_arguments_and_its_result_is_returned(session: Session) -> None:
    @elastic.run
    def train(state: Any, first: int, *, second: int) -> int:
        """Trains."""
        return state.batch + first + second

    assert train(elastic.ElasticState(batch=1), 10, second=100) == 111
    assert train.__doc__ == "Trains."
    assert session.finishes == 1


def test_alone_several_functions_run_one_after_the_other(session: Session) -> None:
    state = elastic.ObjectState(batch=0)

    def train(state: Any) -> int:
        for _ in range(3):
            state.batch += 1
            state.commit()
        return int(state.batch)

    assert [elastic.run(train)(state), elastic.run(train)(state)] == [3, 6]
    assert [(r.has_state, r.progress) for r in session.reports] == [(False, 0), (False, 0)]
    assert session.training == 2


def test_a_change_ends_the_round_without_losing_what_was_not_committed(session: Session) -> None:
    seen: list[int] = []
    resets: list[int] = []

    @elastic.run
    def train(state: Any) -> None:
        seen.append(state.batch)
        while state.batch < 4:
            state.batch += 1
            session.change_pending = state.batch == 2
            state.check_host_updates()

    state = elastic.ElasticState(batch=0)
    state.register_reset_callbacks([lambda: resets.append(len(session.reports))])
    train(state)
    assert seen == [0, 2]
    assert resets == [1, 2]
    assert [r.failure for r in session.reports] == ["", ""]


def test_a_change_that_only_a_peer_knows_of_ends_the_round_too(
    wire: Wire, rounds: ProcessRounds
) -> None:
    rounds.place = place(0, 2)
    wire.someone_knows = True
    with pytest.raises(elastic.HostsUpdatedInterrupt):
        elastic.ElasticState(batch=0).commit()


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.UnknownError(None, None, "HorovodAllreduce failed"),
        tf.errors.FailedPreconditionError(None, None, "Horovod has been shut down"),
        CollectiveFailedError("the change was not agreed"),
        elastic.HorovodInternalError("Horovod has failed"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_failed_collective_goes_back_to_the_last_commit(
    error: Exception, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Wire, "collective", Communicator.collective)
    session.places = [place(0, 2), place(0, 1, 2)]
    seen: list[tuple[int, int]] = []

    @elastic.run
    def train(state: Any) -> str:
        seen.append((state.batch, state.commits))
        if len(seen) == 2:
            return "done"
        state.batch = 1
        state.commit()
        state.batch = 2
        raise error

    assert train(elastic.ElasticState(batch=0)) == "done"
    assert seen == [(0, 0), (1, 1)]
    assert "failed" in session.reports[1].failure or "agreed" in session.reports[1].failure


@pytest.mark.parametrize(
    ("size", "error"),
    [
        (2, ArithmeticError("mine")),
        (2, tf.errors.UnknownError(None, None, "Traceback (most recent call last): py_function")),
        (1, tf.errors.UnknownError(None, None, "the disk is full")),
    ],
)
def test_an_error_of_the_users_own_ends_the_loop(
    size: int, error: Exception, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Wire, "collective", Communicator.collective)
    session.places = [place(0, size)]

    @elastic.run
    def train(_: Any) -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        train(elastic.ElasticState())
    assert raised.value is error
    assert session.finishes == 0


def test_a_failure_that_comes_again_and_again_is_reported(session: Session) -> None:
    @elastic.run
    def train(_: Any) -> None:
        raise elastic.HorovodInternalError("always")

    with pytest.raises(CollectiveFailedError, match=r"failed 3 times after commit 0.*always"):
        train(elastic.ElasticState())
    assert len(session.reports) == 3


def test_who_comes_when_others_have_finished_does_not_call_the_function(
    wire: Wire, rounds: ProcessRounds, session: Session
) -> None:
    root = elastic.ElasticState(batch=7)
    root.finish()
    sync(root, wire, rounds, rank=0)
    wire.is_root = False
    session.places = [place(1, 2)]
    late = elastic.ElasticState(batch=0)
    assert elastic.run(lambda _: pytest.fail("called"))(late) is None
    assert (late.batch, late.progress, session.finishes) == (7, 1, 1)


def test_a_worker_whose_job_has_finished_returns_none(session: Session) -> None:
    session.places = [TrainingOverError("the job has finished")]
    assert elastic.run(lambda _: pytest.fail("called"))(elastic.ElasticState()) is None
    assert session.finishes == 0


def test_a_session_given_from_outside_hears_of_the_order_to_leave(session: Session) -> None:
    session.places = [WorkerLeavingError("SIGTERM")]
    with pytest.raises(WorkerLeavingError):
        elastic.run(lambda _: pytest.fail("called"))(elastic.ElasticState())


def test_a_first_argument_that_is_no_state_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"called with a int first"):
        elastic.run(lambda _: None)(3)


# --- Horovod's functions on Keras variables ----------------------------------------------


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessRounds]:
    """Horovod itself, in a world of one."""
    rounds = ProcessRounds(Membership(SoloSession(), environment=None))
    monkeypatch.setattr(hvd, "rounds_of_process", lambda: rounds)
    yield rounds
    rounds.leave()


def gradients(net: keras.Model, wrap: Any) -> list[tf.Tensor]:
    with wrap(tf.GradientTape()) as tape:
        loss = tf.reduce_sum(net(tf.ones([2, 2])) ** 2)
    return list(tape.gradient(loss, net.trainable_variables))


def test_a_distributed_tape_takes_keras_variables(alone: ProcessRounds) -> None:
    hvd.init()
    hvd.init()  # the second one does nothing, as with Horovod
    assert (hvd.rank(), hvd.size(), hvd.is_initialized()) == (0, 1, True)
    net = model()
    expected = gradients(net, lambda tape: tape)
    for found in (
        gradients(net, hvd.DistributedGradientTape),
        tf.function(gradients)(net, hvd.DistributedGradientTape),
    ):
        assert_equal([g.numpy() for g in found], [g.numpy() for g in expected])


def test_a_graph_that_is_traced_alone_keeps_its_collectives(alone: ProcessRounds) -> None:
    hvd.init()
    net = model()
    traced = tf.function(lambda: gradients(net, hvd.DistributedGradientTape))
    text = str(traced.get_concrete_function().graph.as_graph_def())
    assert text.count('op: "HorovodAllreduce"') == len(net.trainable_variables)


def test_variables_of_all_types_can_be_broadcast(alone: ProcessRounds) -> None:
    hvd.init()
    net = model()
    flag, unsigned = tf.Variable([True, False]), tf.Variable([2**32 - 1], dtype=tf.uint32)
    before = [v.value.numpy() for v in net.variables]
    hvd.broadcast_variables([*net.variables, flag, unsigned], root_rank=0)
    assert_equal([v.value.numpy() for v in net.variables], before)
    assert (flag.numpy().tolist(), unsigned.numpy().tolist()) == ([True, False], [2**32 - 1])


def test_alone_the_loop_trains_with_horovods_own_functions(
    alone: ProcessRounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (elastic_state, elastic_run):
        monkeypatch.setattr(module, "rounds_of_process", lambda: alone)
    variable = tf.Variable([0.0])

    @hvd.elastic.run
    def train(state: Any) -> tuple[int, int]:
        while state.step < 3:
            variable.assign_add(hvd.allreduce(tf.ones([1]), op=hvd.Sum, name="ones"))
            state.step += 1
            state.commit()
        return hvd.rank(), hvd.size()

    assert train(elastic.TensorFlowState([variable], step=0)) == (0, 1)
    assert variable.numpy().tolist() == [3.0]
    assert hvd.size() == 1  # still there after the end
