"""How epochs lie on passes over the input, against what `EpochIterator` of Keras does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_keras.data.plan.fit_passes import FitIterators, Passes, PassRange, Reader
from hvd_elastic_keras.loop.schedule import Schedule


@pytest.mark.parametrize(
    ("steps", "batches", "expected"),
    [
        (None, 10, [(0, 0, 10), (1, 0, 10), (2, 0, 10)]),
        (None, None, [(0, 0, None), (1, 0, None), (2, 0, None)]),
        (4, None, [(0, 0, 4), (0, 4, 4), (0, 8, 4)]),
        (4, 10, [(0, 0, 4), (0, 4, 4), (0, 8, 2)]),
        (5, 10, [(0, 0, 5), (0, 5, 5), (1, 0, 5)]),
        (20, 10, [(0, 0, 10), (1, 0, 10), (2, 0, 10)]),
    ],
)
def test_epochs_lie_one_after_the_other_in_training(
    steps: int | None, batches: int | None, expected: list[tuple[int, int, int | None]]
) -> None:
    found = [Passes(steps).range_of_epoch(epoch, batches) for epoch in range(3)]
    assert found == [PassRange(*e) for e in expected]


@pytest.mark.parametrize(("steps", "batches", "length"), [(3, None, 3), (3, 2, 2), (None, 2, 2)])
def test_every_validation_starts_at_the_front(
    steps: int | None, batches: int | None, length: int
) -> None:
    for index in range(3):
        of_pass = Passes(steps, goes_on=False).range_of_epoch(index, batches)
        assert of_pass == PassRange(index, 0, length)


@given(st.integers(1, 50), st.integers(1, 50))
def test_every_batch_of_a_pass_is_used_once(steps: int, batches: int) -> None:
    used = []
    for epoch in range(-(-batches // steps) * 2):
        of_pass = Passes(steps).range_of_epoch(epoch, batches)
        assert of_pass.steps
        used += [(of_pass.number, of_pass.offset + i) for i in range(of_pass.steps)]
    assert used == [(number, batch) for number in range(2) for batch in range(batches)]


def test_evaluations_are_counted_by_their_frequency() -> None:
    assert Schedule(epochs=9, validation_freq=2).evaluations_before(6) == 3
    assert Schedule(epochs=9, validation_freq=[1, 4], initial_epoch=2).evaluations_before(6) == 1


VALIDATION = Passes(goes_on=False)


@pytest.mark.parametrize(
    ("train", "evaluate", "batches", "expected"),
    [
        (Passes(), None, 4, "t0 - t1 - t2 -"),
        (Passes(), None, None, "t0 t1 t2"),
        (Passes(2), None, 4, "t0 t1"),
        (Passes(2), None, None, "t0"),
        (None, VALIDATION, 4, "e0 - e1 -"),
        (None, Passes(3, goes_on=False), 4, "e0 e1"),
        (None, Passes(4, goes_on=False), 4, "e0 - e1 -"),
        (Passes(), VALIDATION, 4, "t0 - e0 - t1 - t2 - e1 -"),
        (Passes(4), VALIDATION, 4, "t0 t1 e0 - t2 t3 e1 -"),
        (Passes(2), Passes(1, goes_on=False), None, "t0 e0 e1"),
    ],
)
def test_iterators_are_made_in_the_order_of_keras(
    train: Passes | None, evaluate: Passes | None, batches: int | None, expected: str
) -> None:
    """Three epochs, of which the first and the last are evaluated."""
    of_both = dict.fromkeys(Reader, batches)
    made = FitIterators(train, evaluate, of_both, epochs=3, evaluated=[0, 2])
    names = ["-" if m.number is None else f"{m.reader.value[0]}{m.number}" for m in made]
    assert " ".join(names) == expected
    for index, name in enumerate(names):
        if name != "-":
            reader = Reader.TRAINING if name[0] == "t" else Reader.EVALUATION
            assert made.index_of(reader, int(name[1:])) == index
    assert made.index_of(Reader.TRAINING, 99) == len(names) == made.made_by(Reader.TRAINING, 3)


def test_two_datasets_take_turns() -> None:
    """The evaluation reads three of its ten batches, so that no pass over them ends."""
    batches = {Reader.TRAINING: 4, Reader.EVALUATION: 10}
    made = FitIterators(Passes(), Passes(3, goes_on=False), batches, epochs=2, evaluated=[0, 1])
    assert [m.reader.value[0] for m in made] == ["t", "t", "e", "t", "t", "e"]
    assert [m.number for m in made] == [0, None, 0, 1, None, 1]
    assert [made.reader_of(i).value[0] for i in (1, 2, 9)] == ["t", "e", "t"]
