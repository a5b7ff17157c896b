"""Prepares a training: traces its steps, warms them up, and makes the state of this worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import keras
import msgspec
import tensorflow as tf

from hvd_elastic_keras.api.first_steps import explained_first_steps
from hvd_elastic_keras.api.fit_rounds import FitRounds, Prepared
from hvd_elastic_keras.api.training import Training, own_steps
from hvd_elastic_keras.common.errors import ConfigurationError
from hvd_elastic_keras.common.garbage import not_collected
from hvd_elastic_keras.data.input.interfaces import Input
from hvd_elastic_keras.data.input.per_worker import PerWorkerInput
from hvd_elastic_keras.keras_internals.model_building import has_batch_norm
from hvd_elastic_keras.keras_internals.model_configuration import configuration
from hvd_elastic_keras.keras_internals.model_variables import ModelVariables, can_be_sent
from hvd_elastic_keras.loop.newcomer import first_rows, warm_up
from hvd_elastic_keras.loop.observer import Observer, Round
from hvd_elastic_keras.loop.observers import best_model
from hvd_elastic_keras.loop.observers.growing_batch import PerWorkerRunner
from hvd_elastic_keras.loop.phase import PhaseRunner
from hvd_elastic_keras.observe.notices import notices
from hvd_elastic_keras.settings.options import (
    AUTO,
    BATCH,
    LOOP,
    MICRO_BATCH,
    SKIP,
    SPEED,
    RunOptions,
)
from hvd_elastic_keras.state.cursor import Cursor
from hvd_elastic_keras.state.run_state import LEAST_LATE_BYTES, RunState
from hvd_elastic_keras.step.compiled_steps import compiled_step, variables_kept
from hvd_elastic_keras.step.partition.plan import told_of_variables
from hvd_elastic_keras.step.partitioned_step import PartitionedStep
from hvd_elastic_keras.step.step_options import PLAIN, StepOptions
from hvd_elastic_keras.step.world import world_of_process
from hvd_elastic_keras.worker.session import SoloSession

BATCH_NORM_DIFFERS = (
    "warning: batch normalisation normalises over each micro-batch of {} examples, and not over "
    "the batch as plain Keras does: with these options, a step has one round of collectives only. "
    "See docs/exactness.md. --batch_norm=micro_batch chooses this, without a warning."
)
CHECKED_WORKERS = 3
NOT_SHARED = (
    "these variables of layers differ from worker to worker: {}. Only numeric variables of a fixed "
    "shape can be sent to another one. Keep in them only what does not change while it trains."
)


@not_collected()
def prepare(
    training: Training,
    rounds: FitRounds,
    *,
    joins: bool = False,
    has_others: bool = True,
    begins_alone: bool = True,
) -> tuple[Prepared, list[str]]:
    """Traces the steps of the training and runs each once. Returns them and warnings for the user.

    Args:
      joins: whether other workers train already.
      has_others, begins_alone: see `Membership`.
    """
    model = training.model
    variables = variables_kept(model)
    before = variables.values()
    for variable in variables.metrics:  # `reset_metrics` is called as often as in plain Keras
        variable.assign(tf.zeros_like(variable.value))
    world_of_process().follow(SoloSession())  # nothing is pending while it warms up
    with explained_first_steps(model, training.train, training.evaluate):
        sources = _inputs(training)
        steps = [_step(training, variables, source) for source in sources]
        runners = list(map(_runner, sources, steps))
        variables = variables.with_given(
            v for step in steps for v in step.sent_beside(has_others=has_others)
        ).with_given(filter(can_be_sent, training.beside))
        before += [tf.identity(v) for v in variables.all[len(before) :]]
        told = _told_of(steps, variables, has_others=has_others)
        told += told_of_variables([v.name for v in training.beside if not can_be_sent(v)])
        _check_batch_may_grow(training, steps[0])
        _explain_and_check(training.options, runners[0], steps[0])
        model.stop_training = False
        is_late = joins and _may_be_late(training, variables, steps[0])
        warm_up(rounds, variables, runners, has_others=has_others, begins_alone=begins_alone)
    _check_keep_best(training)
    variables.assign(before)
    state = _state(training, variables, runners, steps if has_others else ())
    if is_late:
        state.may_be_late = lambda: not training.callbacks.calls_before_batch()
    return _prepared(training, runners, state), told


def _check_batch_may_grow(training: Training, step: PartitionedStep) -> None:
    if training.growth is not None and step.computes_whole:
        raise ConfigurationError(
            'batch="per_worker" was given, but the step counts on batches of one size (a fixed '
            "batch size of an input, or x.shape[0]), expected one that takes batches of any size. "
            "Use keras.Input(shape=...) and keras.ops.shape(x)[0], or leave it out."
        )


def _explain_and_check(options: RunOptions, runner: PhaseRunner, step: PartitionedStep) -> None:
    """Explains and checks the training step, if the options ask for it."""
    if options.explain_step:
        _explain(step)
    if options.check_step:
        _check(runner)


def _state(
    training: Training,
    variables: ModelVariables,
    runners: Sequence[PhaseRunner],
    shared: Sequence[PartitionedStep],
) -> RunState:
    """Returns the state of this worker at the beginning. Several workers take the shared steps."""
    return RunState(
        training.model,
        variables,
        training.callbacks,
        inputs=[runner.input for runner in runners],
        cursor=Cursor(epoch=training.schedule.initial_epoch),
        user=training.user,
        collectives=" ".join(step.collectives_digest for step in shared),
        configuration=configuration(training.model) if shared else (),
    )


def _prepared(training: Training, runners: list[PhaseRunner], state: RunState) -> Prepared:
    return Prepared(
        training.model,
        runners,
        state,
        training.callbacks,
        _UserRounds(training),
        data=training.data,
        function=training.model.train_function,
    )


def _told_of(
    steps: Sequence[PartitionedStep], variables: ModelVariables, *, has_others: bool
) -> list[str]:
    """Returns what people should know about the steps before the first one."""
    told = [text for step in steps for text in step.told]
    if has_others:
        told += [text for step in steps for text in step.warnings_for_several]
    if variables.lost:
        told.append(NOT_SHARED.format(", ".join(variables.lost)))
    return told


def _check_keep_best(training: Training) -> None:
    if training.options.keep_best:
        best_model.check(
            training.options.keep_best,
            training.model,
            evaluates=training.evaluate is not None,
            has_directory=training.job_dir is not None,
        )


def explain_step(training: Training) -> None:
    """Shows how several workers would share the training step.

    Raises:
      ConfigurationError: several workers cannot share the step.
    """
    errors = explained_first_steps(training.model, training.train, training.evaluate)
    with own_steps(), errors, notices.printed():
        _explain(_step(training, variables_kept(training.model), training.train))


def _explain(step: PartitionedStep) -> None:
    """Shows how several workers share the step. The same line from several workers is shown once.

    Raises:
      ConfigurationError: several workers cannot share the step.
    """
    for line in step.analysis.lines():
        notices.tell(f"step: {line}")


def _check(runner: PhaseRunner) -> None:
    """Checks the training step on the first batch.

    Raises:
      ConfigurationError: several workers would compute other numbers than one worker.
    """
    assert isinstance(runner.step, PartitionedStep)
    count = runner.input.num_micro_batches
    num_operations = runner.step.check(first_rows(runner, count), CHECKED_WORKERS)
    notices.tell(
        f"step: checked: {CHECKED_WORKERS} workers compute the numbers of one worker in all of its "
        f"{num_operations:,} operations"
    )


def _may_be_late(training: Training, variables: ModelVariables, step: PartitionedStep) -> bool:
    """Returns whether the others can take steps before this newcomer has received its state.

    If the batch grows with the workers, they cannot: only workers that compute something count.
    """
    if training.growth is not None or variables.num_bytes < LEAST_LATE_BYTES:
        return False
    return step.may_be_late()


class _UserRounds(Observer):
    """Calls the user's functions when the world size changes for this worker."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._size = 0

    def on_round(self, entered: Round) -> None:
        """Calls reset callbacks before newcomers get the state: what they change is part of it."""
        size = entered.place.size
        old, self._size = self._size, size
        if old:
            self._training.user.on_reset()
        if old and old != size and self._training.on_membership_change is not None:
            self._training.on_membership_change(old, size)


def _inputs(training: Training) -> list[Input]:
    return [i for i in (training.train, training.evaluate) if i is not None]


def _step(training: Training, variables: ModelVariables, source: Input) -> PartitionedStep:
    """Returns the step that computes the batches of an input."""
    trains = source is training.train
    return compiled_step(
        training.model,
        variables,
        source,
        train=trains,
        seed=training.origin.seed,
        deterministic=training.options.deterministic,
        options=dataclasses.replace(
            _options(training) if trains else PLAIN,
            together=together_of(training.options, training.cut_is_chosen),
        ),
    )


def _runner(source: Input, step: PartitionedStep) -> PhaseRunner:
    if isinstance(source, PerWorkerInput):
        return PerWorkerRunner(source, step)
    return PhaseRunner(source, step)


def together_of(options: RunOptions, cut_is_chosen: bool) -> int | None:
    """Returns how many micro-batches may be computed in one pass; None means any number."""
    if options.micro_batches == LOOP:
        return 1
    # On a GPU, the user may have chosen the size of micro-batches to save memory.
    on_gpu = cut_is_chosen and tf.config.list_physical_devices("GPU")
    # The speed of a pass depends on how many micro-batches it has. Shares that follow the speed
    # would not settle.
    if options.micro_batches == AUTO and (on_gpu or options.balance == SPEED):
        return 1
    return options.micro_batches_together or None


def with_batch_norm(options: RunOptions, grows: bool, cut_is_chosen: bool) -> RunOptions:
    """Returns the options of a `fit`, with a choice where `auto` leaves batch normalisation open.

    Args:
      grows: whether each worker takes a batch of its own.
      cut_is_chosen: whether the user has given the size of micro-batches.
    """
    if options.batch_norm != AUTO:
        return options
    has_one_round = options.deterministic or together_of(options, cut_is_chosen) is not None
    chosen = MICRO_BATCH if grows or has_one_round else BATCH
    return msgspec.structs.replace(options, batch_norm=chosen)


def warn_of_batch_norm(
    given: RunOptions, options: RunOptions, model: keras.Model, source: Input
) -> None:
    """Warns if batch normalisation differs from that of plain Keras though nobody asked for it.

    Args:
      given: the options before `with_batch_norm`.
    """
    if (
        (given.batch_norm, options.batch_norm) == (AUTO, MICRO_BATCH)
        and not isinstance(source, PerWorkerInput)
        and source.num_micro_batches > 1
        and has_batch_norm(model)
    ):
        notices.tell(BATCH_NORM_DIFFERS.format(source.micro_batch_size))


def _options(training: Training) -> StepOptions:
    return StepOptions(
        audited=training.options.audit,
        measured_workers=training.train.num_micro_batches
        if training.options.balance == SPEED
        else 0,
        scales_rate=training.growth is not None,
        skips_nonfinite=training.options.on_nonfinite == SKIP,
        timed=training.options.tensorboard or training.callbacks.tensorboard_dir is not None,
        compression=training.options.compression,
        batch_norm=training.options.batch_norm,
    )
