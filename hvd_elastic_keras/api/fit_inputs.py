"""Makes the inputs of a running `fit`, for training and evaluation, and builds its model."""

from __future__ import annotations

import dataclasses

from hvd_elastic_keras.common.errors import DataError
from hvd_elastic_keras.data.input.fit_epochs import FitInput
from hvd_elastic_keras.data.input.interfaces import full_spec
from hvd_elastic_keras.data.input.of_adapter import (
    FitReader,
    OrderSeed,
    are_one,
    check_turns,
    input_of,
    leave_examples_out,
    per_worker_input_of,
    share_cache,
    take_turns,
)
from hvd_elastic_keras.data.plan.fit_passes import Passes, Reader
from hvd_elastic_keras.keras_internals import model_building
from hvd_elastic_keras.keras_internals.fit_call import FitCall
from hvd_elastic_keras.loop.schedule import Schedule
from hvd_elastic_keras.observe.notices import notices
from hvd_elastic_keras.settings.training_config import BatchCut
from hvd_elastic_keras.step.partition.planning.row_wise import is_row_wise

IN_TURNS = (
    "the training and the validation data are made of one dataset with a shuffle(...) that has "
    "another order each time either is read: with take() and skip(), examples move from one to the "
    "other between epochs, as in plain fit. Use shuffle(..., reshuffle_each_iteration=False) "
    "there, and shuffle the training data again."
)


def check_order(call: FitCall, *, alone: bool) -> None:
    """Warns, or raises `DataError`, if training and validation data share one `shuffle`.

    Args:
      alone: whether no other worker will ever read the data.
    """
    if take_turns(call.adapter, call.validation):
        if call.steps_per_epoch is not None and share_cache(call.adapter, call.validation):
            raise DataError(
                "The training and the validation data are made of one dataset with a cache() above "
                "a shuffle(...), and steps_per_epoch was given: the cache may not be complete when "
                "the first evaluation reads it. Leave steps_per_epoch out, or use "
                "shuffle(..., reshuffle_each_iteration=False)."
            )
        if not alone:
            check_turns(call.adapter, call.validation)
        if leave_examples_out(call.adapter, call.validation):
            notices.tell(f"warning: {IN_TURNS}")


@dataclasses.dataclass(frozen=True)
class FitInputs:
    """Makes the inputs of a `fit`.

    Attributes:
      call: the running `fit`.
      schedule: says which epochs there are, and which end with an evaluation.
      seed: determines the order of shuffled data.
      cut: how a batch is cut into micro-batches.
      alone: whether no other worker will ever read the data.
    """

    call: FitCall
    schedule: Schedule
    seed: OrderSeed
    cut: BatchCut
    alone: bool

    def training(self, *, grows: bool, over_micro_batches: bool) -> FitInput:
        """Returns the training data, cut into micro-batches. Builds the model.

        Args:
          grows: whether the batch grows with the workers.
          over_micro_batches: whether batch normalisation normalises over a micro-batch.
        """
        call = self.call
        source = (per_worker_input_of if grows else input_of)(
            call.adapter,
            self._reader(Reader.TRAINING),
            micro_batch_size=lambda size: size,  # until the model is built
            seed=self.seed,
        )
        evaluates = call.validation is not None
        first = source.first_batch()
        full = full_spec(source)
        model_building.build(
            call.model, source.batch_spec, first, full_spec=full, evaluates=evaluates
        )
        has_batch_norm = over_micro_batches and model_building.has_batch_norm(call.model)
        source.cut_into(self.cut.of(source.global_batch_size, has_batch_norm))
        return source

    def evaluation(self, training: FitInput) -> FitInput | None:
        """Returns the validation data; None if there are none."""
        if self.call.validation is None:
            return None
        # An evaluation uses the moving averages of batch normalisation, so any cut will do.
        cut = BatchCut(self.cut.micro_batch_size)
        reader = self._reader(Reader.EVALUATION)
        return input_of(
            self.call.validation,
            reader,
            micro_batch_size=lambda size: cut.of(size, has_batch_norm=False),
            seed=self.seed,
            beside=training if reader.other is not None else None,
        )

    def _reader(self, reader: Reader) -> FitReader:
        """Describes how the training, or the evaluation, reads its data."""
        call, schedule = self.call, self.schedule
        trains = reader is Reader.TRAINING
        training = Passes(call.steps_per_epoch)
        evaluation = Passes(call.validation_steps, goes_on=False)
        first = schedule.initial_epoch
        other = evaluation if trains else training
        both = call.adapter, call.validation
        # Examples in a common cache come in the order of the training, also for one worker.
        in_turns = are_one(*both) or (take_turns(*both) and (not self.alone or share_cache(*both)))
        return FitReader(
            name="x" if trains else "validation_data",
            reader=reader,
            alone=self.alone,
            is_row_wise=is_row_wise,
            passes=training if trains else evaluation,
            index_of=(lambda epoch: epoch - first) if trains else schedule.evaluations_before,
            epochs=call.epochs - first,
            evaluated=[e - first for e in range(first, call.epochs) if schedule.evaluates_after(e)],
            other=other if in_turns else None,
            other_data=(call.validation if trains else call.adapter) if in_turns else None,
        )
