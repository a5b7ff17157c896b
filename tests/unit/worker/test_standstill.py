"""A worker that stands still in its own code writes its stacks, once per place."""

from __future__ import annotations

from hvd_elastic_keras.common import protocol
from hvd_elastic_keras.worker.standstill import Standstill


class Worker:
    def __init__(self) -> None:
        self.now = 0.0
        self.written: list[float] = []
        self.standstill = Standstill(lambda: self.written.append(self.now), lambda: self.now)

    def beats(
        self,
        seconds: int,
        step: int,
        phase: str = "training",
        in_collective: bool = False,
        computing: bool = False,
    ) -> None:
        for _ in range(seconds):
            self.now += 1.0
            self.standstill.look(
                protocol.Heartbeat(
                    worker_id="w0",
                    training=1,
                    round=1,
                    step=step,
                    progress=step,
                    phase=phase,
                    in_collective=in_collective,
                    computing=computing,
                )
            )


def test_a_standstill_is_written_once_and_again_at_another_place() -> None:
    worker = Worker()
    worker.beats(31, step=5)
    assert worker.written == []
    worker.beats(500, step=5)
    assert worker.written == [32.0]
    worker.beats(100, step=6)
    assert len(worker.written) == 2


def test_a_slow_input_does_not_fill_the_log() -> None:
    worker = Worker()
    for step in range(20):
        worker.beats(40, step=step)
    assert len(worker.written) == 5


def test_waiting_with_the_others_or_for_a_place_is_no_standstill() -> None:
    worker = Worker()
    worker.beats(100, step=5, in_collective=True)
    worker.beats(100, step=5, computing=True)
    worker.beats(100, step=5, phase="waiting")
    assert worker.written == []


def test_the_stacks_are_written_when_the_others_wait() -> None:
    worker = Worker()
    worker.beats(100, step=5, computing=True)
    worker.standstill.others_wait()
    assert worker.written == [100.0]
