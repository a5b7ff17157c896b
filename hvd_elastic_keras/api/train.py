"""Trains one model once. `Trainer` and `ElasticCallback` share this code."""

from __future__ import annotations

import dataclasses
import functools
import socket
import time
from collections.abc import Callable, Iterable, Mapping

from hvd_elastic_keras.api.build_loop import build_loop, by_phase
from hvd_elastic_keras.api.fit_in_elastic_run import RoundInside, RoundOverError
from hvd_elastic_keras.api.fit_rounds import FitRounds
from hvd_elastic_keras.api.prepare import prepare
from hvd_elastic_keras.api.training import Training, own_steps
from hvd_elastic_keras.common.errors import WorkerLeavingError
from hvd_elastic_keras.common.events import TensorBoardUsed
from hvd_elastic_keras.common.protocol import READING, TRACING
from hvd_elastic_keras.keras_internals.global_seed import leave_as_after_fit
from hvd_elastic_keras.loop.callback_runner import CallbackRunner
from hvd_elastic_keras.loop.newcomer import ReadAlong
from hvd_elastic_keras.loop.observer import Observer
from hvd_elastic_keras.loop.observers.changes_unseen import ChangesUnseen
from hvd_elastic_keras.loop.phase import PhaseRunner
from hvd_elastic_keras.observe.notices import Notice, notices
from hvd_elastic_keras.state.cursor import Phase
from hvd_elastic_keras.step.compiled_steps import trainable_in_steps
from hvd_elastic_keras.step.world import world_of_process
from hvd_elastic_keras.worker.membership import Membership
from hvd_elastic_keras.worker.own_gpus import check_gpus
from hvd_elastic_keras.worker.reporter import Reporter
from hvd_elastic_keras.worker.rounds import Rounds


def train(training: Training, rounds: FitRounds) -> None:
    """Trains to the end, together with all other workers.

    In a user's script, a worker that has to leave before the end (SIGTERM, `ctl remove`) ends its
    process with exit code 0.

    Raises:
      MasterUnreachableError: the launcher is gone.
      CollectiveFailedError: the same step fails again and again although no worker is lost.
      ConfigurationError: the model or the data cannot be trained. If the script does not catch this
        error, the job ends with the error's text.
    """
    try:
        with own_steps():
            if isinstance(rounds, RoundInside):
                _train_inside(training, rounds)
            else:
                _train(training, rounds)
    except WorkerLeavingError as error:
        rounds.membership.end_process(error)
    finally:
        leave_as_after_fit()


def _train(training: Training, rounds: FitRounds) -> None:
    began = time.monotonic()
    membership, session = rounds.membership, rounds.session
    check_gpus(membership)
    communicator = rounds.communicator
    if membership.launched:  # code before the first step concerns this worker only
        world_of_process().enter_round(0, 1)
    joins = membership.others_train(session.training + 1)
    session.reporter.at(TRACING, 0, 0)
    prepared, told_of_steps = prepare(
        training,
        rounds,
        joins=joins,
        has_others=membership.has_others,
        begins_alone=membership.begins_alone,
    )
    told = open_to(rounds)
    along = read_along(membership, by_phase(prepared.runners))
    session.join(
        communicator,
        training.train.num_micro_batches,
        warm_up_s=time.monotonic() - began,
        each=training.growth is not None,
    )
    to_tell = [*told, *_warnings(training, told_of_steps), *_curves_beside(training.callbacks)]
    watching = [*along, _changes_unseen(training)]
    build_loop(training, prepared, rounds, to_tell, watching).run()


def _train_inside(training: Training, inside: RoundInside) -> None:
    """Trains in a round of `elastic.run`, and continues a `fit` that an earlier round has cut off.

    Writes no files. The files of the job belong to its trainings, and the whole function of
    `elastic.run` counts as one training.
    """
    unaudited = training.options.replaced({"audit": False})
    training = dataclasses.replace(training, job_dir=None, options=unaudited)
    told_of_steps: list[str] = []
    prepared = inside.prepared_for(training.data, training.model)
    if prepared is None:
        # Code before the first step concerns this worker only.
        world_of_process().enter_round(0, 1)
        prepared, told_of_steps = prepare(training, inside)
    before, prepared.callbacks = prepared.callbacks, training.callbacks
    prepared.state.hand_over(training.callbacks, training.user)
    inside.take_up(prepared.state)
    training.callbacks.succeed(before)
    told = open_to(inside)
    to_tell = [*told, *([] if inside.goes_on else _warnings(training, told_of_steps))]
    watching = [_changes_unseen(training)]
    loop = build_loop(training, prepared, inside, to_tell, watching)
    with inside.until_end_of_round(prepared):
        try:
            loop.run()
        except RoundOverError:
            training.callbacks.pause()
            raise


def _changes_unseen(training: Training) -> ChangesUnseen:
    return ChangesUnseen(training.model, trainable_in_steps(training.model))


def open_to(rounds: Rounds) -> list[Notice]:
    """Makes the training notice membership changes, and the input's notices reach the user.

    Returns the notices that have not been shown yet.
    """
    world_of_process().follow(rounds.session)
    return notices.report_to(_shown_by(rounds.session.reporter, rounds.membership))


def read_along(membership: Membership, runners: Mapping[Phase, PhaseRunner]) -> list[Observer]:
    """Brings a newcomer's inputs close to the position of the others, if this requires reading.

    The returned observer reads on until the worker enters its first round.
    """
    if not any(runner.input.from_front for runner in runners.values()):
        return []
    training = membership.session.training + 1
    others_read = functools.partial(membership.others_read, training)
    along = ReadAlong(runners, others_read)
    membership.session.reporter.at(READING, 0, 0)
    along.start(gives_up=lambda: membership.leaving)
    return [along]


def _warnings(training: Training, told: Iterable[str]) -> list[Notice]:
    """Returns warnings for the user about the training, before it begins."""
    texts = list(dict.fromkeys(told))
    if training.options.audit and training.job_dir is None:
        texts.append("there is no job directory, so that no ledger of used examples is written")
    count, size = training.train.num_examples, training.train.global_batch_size
    if count is not None and count < size:
        texts.append(
            f"there are {count} training examples, fewer than the {size} of a global batch: every "
            "step takes all of them."
        )
    return [Notice(f"warning: {text}") for text in texts]


def _curves_beside(callbacks: CallbackRunner) -> list[Notice]:
    """Returns a notice that tells the launcher the user's TensorBoard directory."""
    directory = callbacks.tensorboard_dir
    if directory is None:
        return []
    return [Notice("", TensorBoardUsed(directory=directory, host=socket.gethostname()))]


def _shown_by(reporter: Reporter, membership: Membership) -> Callable[[Notice], None]:
    """Returns a function that shows the notices of the input while it is read."""
    environment = membership.environment
    who = f"[{environment.worker_id}] " if environment else ""

    def report(notice: Notice) -> None:
        if notice.once:
            prefix = who if notice.of_worker else ""
            reporter.tell(notice.text, notice.entry, prefix=prefix)
        else:
            reporter.show(f"{who}{notice.text}\n")

    return report
