"""Checks during the training that all workers read the same batches and hold the same weights.

The checks of batches are too rare to cost anything. They come after the first steps of a round,
every now and then, and before an epoch ends. So no checkpoint is written at the end of an epoch in
which the data differed.

All workers apply the same sums to the same weights. So not a bit differs, unless memory is damaged
or the user's code changes the weights of one worker only.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from hvd_elastic_keras.common.errors import DataError, WeightsDifferError
from hvd_elastic_keras.data.examples.batch_log import BatchLog, Difference, first_difference
from hvd_elastic_keras.loop.observer import Observer, Round, TakenStep
from hvd_elastic_keras.loop.phase import PhaseRunner
from hvd_elastic_keras.state.cursor import Cursor, Phase
from hvd_elastic_keras.worker.horovod_runtime import Communicator
from hvd_elastic_keras.worker.reporter import Reporter

NAMES = {Phase.TRAIN: "training", Phase.EVALUATE: "validation", Phase.INFER: "given"}
"""Names of the data of each phase."""
INTERVAL = 64
"""Steps between two comparisons. Before this step of a round, comparisons are more frequent."""


class SameReading(Observer):
    """Compares the batches that the workers of a round have read. All workers take part.

    Args:
      phases: runners of the phases that have an input.
    """

    def __init__(self, phases: Mapping[Phase, PhaseRunner], communicator: Communicator) -> None:
        logs = {phase: runner.input.log for phase, runner in phases.items()}
        self._logs: dict[Phase, BatchLog] = {p: log for p, log in logs.items() if log is not None}
        self._communicator = communicator
        self._members: tuple[str, ...] = ()
        self._steps = 0

    def on_round(self, entered: Round) -> None:
        """Begins to count the steps of a round. A single worker has nothing to compare."""
        self._members, self._steps = entered.place.members, 0
        for log in self._logs.values():
            log.switch(len(self._members) > 1)

    def after_step(self, step: TakenStep) -> None:
        """Compares if it is time, on all workers after the same step.

        Raises:
          DataError: the workers have read different batches; raised on all of them.
        """
        if step.result.change_pending:
            return  # the round ends
        self._steps += 1
        if is_due(self._steps):
            self._compare(Phase.TRAIN, step.cursor.global_step + 1)

    def at_end_of_phase(self, cursor: Cursor) -> None:
        """Compares the batches read since the last comparison.

        Raises:
          DataError: the workers have read different batches; raised on all of them.
        """
        self._compare(cursor.phase, cursor.global_step)

    def _compare(self, phase: Phase, step: int) -> None:
        log = self._logs.get(phase)
        if log is None or len(self._members) < 2:
            return
        name = NAMES[phase]
        with self._communicator.collective():
            rows = self._communicator.gather(log.take(), f"elastic_batches_{name}")
        found = first_difference(rows)
        if found is not None:
            raise DataError(_message(found, name, self._members, step))


def is_due(steps: int) -> bool:
    """Whether to compare after `steps` steps of a round.

    >>> [steps for steps in range(200) if is_due(steps)]
    [1, 2, 4, 8, 16, 32, 64, 128, 192]
    """
    few = 0 < steps < INTERVAL and not steps & (steps - 1)
    return few or (steps > 0 and steps % INTERVAL == 0)


def _message(found: Difference, name: str, members: tuple[str, ...], step: int) -> str:
    odd = [members[rank] for rank in found.odd]
    others = [member for rank, member in enumerate(members) if rank not in found.odd]
    who = f"{' and '.join(odd)} had another one than {', '.join(others)}"
    if not odd:
        who = f"that of {' and '.join(members)} differs"
    return (
        f"Batch {found.position} of pass {found.number} over the {name} data (counted from 0) was "
        f"not the same in all workers: {who}. It was noticed after step {step}; what was trained "
        "since then is void, checkpoints of earlier epochs are good. Every worker runs the whole "
        "script, and reads all batches: seed all that is random, let nothing depend on the time "
        "or the process, and draw no random numbers in Python functions that run in parallel "
        "(py_function under num_parallel_calls, a PyDataset with several workers)."
    )


class SameWeights(Observer):
    """Compares checksums of the state of all workers of a round. All workers take part.

    Args:
      values: returns all values that must be the same, in the same order on all workers.
      every_n_steps: number of steps between two comparisons; 0 never compares.
    """

    def __init__(
        self,
        reporter: Reporter,
        communicator: Communicator,
        values: Callable[[], Sequence[tf.Tensor]],
        every_n_steps: int,
    ) -> None:
        self._reporter = reporter
        self._communicator = communicator
        self._values = values
        self._every = every_n_steps
        self._members: tuple[str, ...] = ()
        self._rank = 0

    def on_round(self, entered: Round) -> None:
        """Notes the workers of the round."""
        self._members, self._rank = entered.place.members, entered.place.rank

    def after_step(self, step: TakenStep) -> None:
        """Compares if it is time, on all workers after the same step.

        Raises:
          WeightsDifferError: this worker differs from the others. It ends, and the others go on.
        """
        number = step.cursor.global_step + 1
        is_due = self._every > 0 and number % self._every == 0 and len(self._members) > 1
        if not is_due or step.result.change_pending:
            return
        mine = np.array([[checksum(self._values())]], np.float64)
        with self._communicator.collective():
            rows = self._communicator.gather(mine, "elastic_weights")
        odd = odd_ranks([row.item() for row in rows])
        if odd:
            self._reporter.tell(f"warning: {_words(odd, self._members, number, self._every)}")
        if self._rank in odd:
            raise WeightsDifferError(
                f"After step {number} the weights of this worker, {self._members[self._rank]}, are "
                "not those of the others: it ends, and another one takes its place."
            )


def checksum(values: Sequence[tf.Tensor]) -> int:
    """CRC-32 of all bytes."""
    result = 0
    for value in values:
        result = zlib.crc32(value.numpy().tobytes(), result)
    return result


def odd_ranks(checksums: Sequence[float]) -> list[int]:
    """Returns the ranks whose checksum is not the most frequent one.

    If two checksums are equally frequent, the one that comes first counts as right.

    >>> odd_ranks([5, 7, 5]), odd_ranks([7, 5, 5]), odd_ranks([5, 7]), odd_ranks([5, 5])
    ([1], [0], [1], [])
    """
    # `most_common` puts the first of equally frequent values first: rank 0 has been there longest.
    [(usual, _)] = Counter(checksums).most_common(1)
    return [rank for rank, value in enumerate(checksums) if value != usual]


def _words(odd: Sequence[int], members: Sequence[str], step: int, every: int) -> str:
    who = " and ".join(members[rank] for rank in odd)
    others = ", ".join(member for rank, member in enumerate(members) if rank not in odd)
    verb, it = ("has", "it ends and is") if len(odd) == 1 else ("have", "they end and are")
    doubt = ""
    if 2 * len(odd) >= len(members):
        doubt = " It is unknown which of them is right: the one that has been here longest is kept."
    return (
        f"after step {step}, {who} {verb} other weights than {others}; {it} replaced. Damaged "
        "memory does this, or code that changes the weights of one worker only. The gradients of "
        f"up to {every} step{'' if every == 1 else 's'} may have been wrong.{doubt}"
    )
