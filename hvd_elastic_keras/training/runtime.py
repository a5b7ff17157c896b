"""Trains one model once: what `Trainer` and `ElasticCallback` have in common."""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
from collections.abc import Callable
from pathlib import Path

import keras

from hvd_elastic_keras import files
from hvd_elastic_keras.account import Account
from hvd_elastic_keras.checkpoint.manager import Origin
from hvd_elastic_keras.data.notices import Notice, notices
from hvd_elastic_keras.data.per_worker import PerWorkerInput
from hvd_elastic_keras.data.pipeline import Input
from hvd_elastic_keras.errors import WorkerLeavingError
from hvd_elastic_keras.training.additivity import metrics_that_do_not_add_up
from hvd_elastic_keras.training.audit import Auditor, Ledgers
from hvd_elastic_keras.training.callback_runner import CallbackRunner
from hvd_elastic_keras.training.compiled_steps import compiled_step, world_of_process
from hvd_elastic_keras.training.cursor import Cursor, Phase
from hvd_elastic_keras.training.durable import durable
from hvd_elastic_keras.training.growing_batch import GrowingBatch
from hvd_elastic_keras.training.learning_rate_scale import Growth
from hvd_elastic_keras.training.loop import TrainingLoop
from hvd_elastic_keras.training.per_worker import PerWorkerRunner
from hvd_elastic_keras.training.phases import PhaseRunner
from hvd_elastic_keras.training.progress import ProgressDisplay
from hvd_elastic_keras.training.read_along import ReadAlong
from hvd_elastic_keras.training.run_state import RunState
from hvd_elastic_keras.training.schedule import Schedule
from hvd_elastic_keras.training.step import PLAIN, StepOptions
from hvd_elastic_keras.training.user_state import UserState
from hvd_elastic_keras.training.variables import ModelVariables, variables_of
from hvd_elastic_keras.training.warm_up import warm_up
from hvd_elastic_keras.worker.membership import Membership
from hvd_elastic_keras.worker.session import Session, SoloSession

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """What is to be trained.

    Attributes:
      model: built and compiled.
      evaluate: input of the evaluation, if there is one.
      origin: what a checkpoint must agree in.
      job_dir: where checkpoints and results go; None keeps nothing.
      deterministic: whether bits must not depend on who computes what.
      follows_speed: whether slower workers get fewer micro-batches.
      audited: whether the examples of each step go into a ledger in `job_dir`.
      growth: how the learning rate follows the number of workers, if the batch does; `train` is a
        `PerWorkerInput` then.
      on_membership_change: called with the old and the new world size.
    """

    model: keras.Model
    schedule: Schedule
    train: Input
    evaluate: Input | None
    callbacks: CallbackRunner
    origin: Origin
    job_dir: Path | None = None
    deterministic: bool = False
    follows_speed: bool = False
    audited: bool = False
    growth: Growth | None = None
    verbose: int = 1
    user: UserState = dataclasses.field(default_factory=UserState)
    on_membership_change: Callable[[int, int], None] | None = None


def train(training: Training, membership: Membership) -> None:
    """Trains to the end, with everybody who is there.

    In a user's script, a worker that has to leave before the end (SIGTERM, `ctl remove`) ends its
    process with exit code 0.

    Raises:
      MasterUnreachableError: the launcher is gone.
      CollectiveFailedError: the same step fails again and again although nobody is lost.
      ConfigurationError: the model or the data cannot be trained. If the script does not catch it,
        the job ends with its text.
    """
    try:
        _train(training, membership)
    except WorkerLeavingError as error:
        membership.end_process(error)


def _train(training: Training, membership: Membership) -> None:
    began = time.monotonic()
    session, model = membership.session, training.model
    communicator = membership.communicator()
    variables = variables_of(model)
    world = world_of_process()
    world.follow(SoloSession())  # nothing is pending while it warms up
    unshared = _unshared_metrics(training, variables)
    runners = [_runner(training, variables, source, unshared) for source in _inputs(training)]
    model.reset_metrics()
    model.stop_training = False
    warm_up(communicator, variables, runners)
    state = RunState(
        model,
        variables,
        training.callbacks,
        inputs=[runner.input for runner in runners],
        cursor=Cursor(epoch=training.schedule.initial_epoch),
        user=training.user,
    )
    world.follow(session)
    told = notices.report_to(_reporter(session, membership))
    display = ProgressDisplay(session.show, membership.interactive, training.verbose)
    along = _read_along(session, runners)
    session.join(
        communicator,
        training.train.num_micro_batches,
        warm_up_s=time.monotonic() - began,
        each=training.growth is not None,
    )
    auditor = _auditor(training, runners[0], session, display)
    loop = TrainingLoop(
        model=model,
        schedule=training.schedule,
        session=session,
        communicator=communicator,
        state=state,
        train=runners[0],
        evaluate=runners[1] if len(runners) > 1 else None,
        callbacks=training.callbacks,
        world=world,
        display=display,
        durable=durable(training, state, variables, session),
        on_round=_Rounds(training),
        read_along=along,
        auditor=auditor,
        growing=GrowingBatch(training.growth, world, session, display) if training.growth else None,
        notices=[*told, *_warnings(training, unshared)],
    )
    try:
        loop.run()
    finally:
        if auditor is not None:
            auditor.close()


def _read_along(session: Session, runners: list[PhaseRunner]) -> ReadAlong | None:
    """Brings the inputs of a newcomer close to where the others are, if that takes reading."""
    if not any(runner.input.from_front for runner in runners):
        return None
    training = session.training + 1
    phases = (Phase.TRAIN, Phase.EVALUATE)
    by_phase = dict(zip(phases, runners, strict=False))
    along = ReadAlong(by_phase, functools.partial(session.others_read, training))
    session.at("reading", 0, 0)
    along.start(gives_up=lambda: session.leaving)
    return along


class _Rounds:
    """Tells the user of changes of the world size that this worker sees."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._size = 0

    def __call__(self, size: int) -> None:
        old, self._size = self._size, size
        if old:
            self._training.user.on_reset()
        if old and old != size and self._training.on_membership_change is not None:
            self._training.on_membership_change(old, size)


def _inputs(training: Training) -> list[Input]:
    return [i for i in (training.train, training.evaluate) if i is not None]


def _unshared_metrics(training: Training, variables: ModelVariables) -> list[keras.Metric]:
    # Tried in the form of an evaluation: metrics know no difference.
    trial = _inputs(training)[-1]
    return metrics_that_do_not_add_up(
        training.model, variables, trial.batch_spec, trial.first_batch()
    )


def _warnings(training: Training, unshared: list[keras.Metric]) -> list[Notice]:
    """What people should be told about the training before it begins."""
    texts = []
    if unshared:
        texts.append(
            f"the state of these metrics does not add up over parts of a batch: "
            f"{', '.join(m.name for m in unshared)}. They are left out of the training logs, and "
            "each evaluation is computed whole on every worker."
        )
    if training.audited and training.job_dir is None:
        texts.append("there is no job directory, so that no ledger of used examples is written")
    count, size = training.train.num_examples, training.train.global_batch_size
    if count is not None and count < size:
        texts.append(
            f"there are {count} training examples, fewer than the {size} of a global batch: every "
            "step takes all of them."
        )
    return [Notice(f"warning: {text}") for text in texts]


def _reporter(session: Session, membership: Membership) -> Callable[[Notice], None]:
    """Shows what the input tells while it is read."""
    environment = membership.environment
    who = f"[{environment.worker_id}] " if environment else ""

    def report(notice: Notice) -> None:
        session.show(f"{who}{notice.text}\n")
        if notice.event:
            session.record(notice.event, **notice.fields)

    return report


def _runner(
    training: Training, variables: ModelVariables, source: Input, unshared: list[keras.Metric]
) -> PhaseRunner:
    trains = source is training.train
    step = compiled_step(
        training.model,
        variables,
        source,
        train=trains,
        unshared=unshared,
        deterministic=training.deterministic,
        options=_options(training) if trains else PLAIN,
    )
    if isinstance(source, PerWorkerInput):
        return PerWorkerRunner(source, step)
    return PhaseRunner(source, step, shared=trains or not unshared)


def _options(training: Training) -> StepOptions:
    return StepOptions(
        audited=training.audited,
        measured_workers=training.train.num_micro_batches if training.follows_speed else 0,
        scales_rate=training.growth is not None,
    )


def _auditor(
    training: Training, runner: PhaseRunner, session: Session, display: ProgressDisplay
) -> Auditor | None:
    if training.job_dir is None:
        return None
    directory = files.training_dir(training.job_dir, session.training) / files.LEDGER
    if not training.audited and not directory.exists():
        return None

    def tell(epoch: int, account: Account) -> None:
        session.record(
            "epoch_audited", epoch=epoch, exact=account.is_exact, verdict=account.verdict
        )
        display.note(f"audit of epoch {epoch + 1}: {account.summary}")

    ledgers = Ledgers(directory, runner, tell, warn=display.warning)
    return Auditor(ledgers, records=training.audited)
