"""How the time of a step is split, with a fake clock and real graphs."""

from __future__ import annotations

import pytest

tf = pytest.importorskip("tensorflow")

from hvd_elastic_keras.step.world import EVERY_S, StepClock


class Steps:
    """Steps that compute for 3 s and wait for their sums for 2 s."""

    def __init__(self, eager: bool) -> None:
        self.now = 100.0
        self.notes = 0
        self.clock = StepClock(self.look)
        self.take = self._step if eager else tf.function(self._step)

    def look(self) -> float:
        self.notes += 1
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds

    def _step(self) -> None:
        tf.numpy_function(lambda: self.pass_by(3.0), [], [])
        computed = self.clock.computed()
        with tf.control_dependencies([computed]):
            waited = tf.numpy_function(lambda: self.pass_by(2.0), [], [])
        with tf.control_dependencies([w for w in [waited] if w is not None]):
            self.clock.summed()


@pytest.mark.parametrize("eager", [True, False])
def test_a_timed_step_is_split_where_its_part_was_computed(eager: bool) -> None:
    steps = Steps(eager)
    steps.clock.begin()
    steps.take()
    steps.pass_by(10.0)
    assert steps.clock.seconds() == (3.0, 2.0)


def test_the_step_after_it_is_not_timed_and_costs_no_call_into_python() -> None:
    steps = Steps(eager=False)
    steps.clock.begin()
    steps.take()
    assert steps.clock.seconds() is not None
    steps.clock.begin()
    looked = steps.notes
    steps.take()
    assert steps.notes == looked
    assert steps.clock.seconds() is None
    steps.pass_by(EVERY_S)
    steps.clock.begin()
    steps.take()
    assert steps.clock.seconds() == (3.0, 2.0)


def test_a_step_that_did_not_come_to_its_end_has_no_times() -> None:
    steps = Steps(eager=False)
    steps.clock.begin()
    steps.take()
    steps.pass_by(1.0)
    steps.clock.begin()
    assert steps.clock.seconds() is None
