"""Checks at regular steps that all workers hold the same weights.

All workers apply the same sums to the same weights. So not a bit differs, unless memory is damaged
or the user's code changes the weights of one worker only.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from hvd_elastic_keras.common.errors import WeightsDifferError
from hvd_elastic_keras.loop.observer import Observer, Round, TakenStep
from hvd_elastic_keras.worker.horovod_runtime import Communicator
from hvd_elastic_keras.worker.reporter import Reporter


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
