"""Checks whether two workers, or two runs of a job, read the same data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hvd_elastic_keras.common.errors import DataError
from hvd_elastic_keras.data.examples import structure
from hvd_elastic_keras.data.input.interfaces import Input

NAMES = ("training", "validation")
"""Names of the data of the inputs."""
UNITS = {"num_examples": "examples", "batches_per_pass": "batches"}


class DataIdentity:
    """First batches and sizes of the data of a training, which have to agree.

    Args:
      inputs: input of the training, and of the validation if there is any.
    """

    def __init__(self, inputs: Sequence[Input]) -> None:
        self._inputs = inputs
        self._fingerprints = [structure.fingerprint(i.first_batch()) for i in inputs]

    def state(self) -> dict[str, Any]:
        """Returns fingerprints and sizes as JSON."""
        sizes = {key: [getattr(i, key) for i in self._inputs] for key in UNITS}
        return {"fingerprints": self._fingerprints, **sizes}

    def restore(self, state: dict[str, Any], checkpoint: Path | str | None) -> None:
        """Checks that the data are the same, and takes over the number of batches per pass.

        Otherwise a worker may know this number only after reading to the end.

        Args:
          checkpoint: where the state was read from; None if another worker has sent it.

        Raises:
          DataError: the state is of other data.
        """
        self._check_batches(state["fingerprints"], checkpoint)
        self._check_sizes(state, checkpoint)
        # After a checkpoint, the validation data may be new, or there may be none any more.
        for source, count in zip(self._inputs, state["batches_per_pass"], strict=False):
            if checkpoint is None:
                source.know_batches_per_pass(count)
            else:
                source.expect_batches_per_pass(count)

    def _check_batches(
        self, expected: list[list[list[Any]]], checkpoint: Path | str | None
    ) -> None:
        if checkpoint is None and len(expected) != len(self._inputs):
            raise DataError(
                "Some workers have validation data and others have none. Every worker runs the "
                "whole script: give all the same data."
            )
        for name, mine, other in zip(NAMES, self._fingerprints, expected, strict=False):
            same = structure.same_fingerprint(mine, other)
            if not same and checkpoint:
                raise DataError(
                    f"The first batch of the {name} data is not the one that {checkpoint} was made "
                    "with: the examples are others, or in another order. Going on would repeat "
                    "some and lose others. Use the same data again, or another job_dir."
                )
            if not same:
                raise DataError(
                    f"The first batch of the {name} data is not the same in all workers, so that "
                    "some examples would be used twice and others never. Every worker runs the "
                    "whole script: seed all that is random before the data are made, for example "
                    "with keras.utils.set_random_seed(1) or shuffle(n, seed=1)."
                )

    def _check_sizes(self, state: dict[str, Any], checkpoint: Path | str | None) -> None:
        for key, unit in UNITS.items():
            for name, source, other in zip(NAMES, self._inputs, state[key], strict=False):
                mine = getattr(source, key)
                told = not source.ends_unannounced and None not in (mine, other)
                if told and mine != other and checkpoint:
                    raise DataError(
                        f"The {name} data have {mine} {unit}, but had {other} when {checkpoint} "
                        "was made. Going on would repeat examples or lose some. Use the same data "
                        "again, or another job_dir."
                    )
                if told and mine != other:
                    raise DataError(
                        f"The {name} data have {mine} {unit} in this worker, but {other} in "
                        "others. Every worker runs the whole script: give all the same data."
                    )
