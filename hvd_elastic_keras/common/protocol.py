"""Messages between workers and the master: versioned JSON, checked on reading.

Workers tell the master what happened with one of the `WorkerEvent` types (`POST /v1/events`),
ask for a place in the next round with `EnterRequest` (`POST /v1/enter`, answered when the round
is complete) and learn of changes with `WorkerUpdate` (`GET /v1/updates`, a long poll). A worker
that has no place yet asks where the others train and read (`GET /v1/input`).

A script may train several times in one job. Each process counts its trainings from 1. All run the
same script, so training N of one process is training N of all.
"""

from __future__ import annotations

from hvd_elastic_keras.common import events
from hvd_elastic_keras.common.messages import Count, Message, Name, Seconds

NOTICE = "elastic-notice "
"""Start of a line of the check before a job that the launcher is to show; JSON follows."""
TERM_HEADER = "X-Elastic-Term"
"""HTTP header in each answer: the term of the master that answers.

The masters of a job directory are counted upwards.
"""
FINISHED = "finished"
"""Why a job stops after it has done everything that was asked of it."""
TRACING = "tracing"
"""The phase in which a worker traces its steps and runs each once."""
READING = "reading"
"""The phase in which a worker reads its input up to the position of the others. It may take
hours."""
NO_WORKER = "this worker is no longer part of the job"
"""Why a worker leaves after the master has given it up."""
ALIVE_INTERVAL_S = 2.0
LONG_POLL_S = 20.0
"""How long the master holds an unanswered request before it says "ask again"."""


class Joined(Message, frozen=True, kw_only=True, tag="joined"):
    """A worker is warm (imported, traced) for a training and wants a place in a round of it."""

    worker_id: Name
    training: Count
    pid: Count
    num_micro_batches: Count
    """Micro-batches in a global batch: more workers than this are of no use. 0 means no limit."""
    each: bool = False
    """Whether every worker computes `num_micro_batches`: the batch grows with the workers."""
    warm_up_s: Seconds


class InputPosition(Message, frozen=True, kw_only=True):
    """The batch that the next step takes from an input that must be read from its front.

    `progress` to `worker_batches` are fields of `state.cursor.Cursor`.
    """

    training: Count
    progress: Count
    phase: Name
    epoch: Count
    step: Count
    worker_batches: Count = 0
    batches_per_pass: Count | None = None
    """Batches in a pass over the training data; None if not known."""


class Heartbeat(Message, frozen=True, kw_only=True, tag="heartbeat"):
    """Sent twice a second. `ctl status` shows `phase`, and the master uses it, too."""

    worker_id: Name
    training: Count
    round: Count
    step: Count
    progress: Count
    phase: Name
    in_collective: bool = False
    """Whether the training thread waits for the other workers in a step, or is about to."""
    computing: bool = False
    """Whether the training thread computes its part of a step, for which others may wait."""
    reading: InputPosition | None = None
    cores: float = 0.0
    """Processor time of the worker's process per second, since the heartbeat before."""
    memory_bytes: Count = 0
    """Memory of the worker's process that is in use (resident)."""

    @property
    def point(self) -> tuple[object, ...]:
        """The point of its training that the worker has come to."""
        where = (self.training, self.round, self.progress)
        return (*where, self.phase, self.in_collective, self.computing)


class Alive(Message, frozen=True, kw_only=True, tag="alive"):
    """Tells that the process of a worker runs, whatever the worker itself tells.

    A joiner, which looks after its worker, sends this every `ALIVE_INTERVAL_S`.
    """

    worker_id: Name


class Running(Message, frozen=True, kw_only=True, tag="running"):
    """The worker holds the root's state, at `step`, and starts its first step of this round."""

    worker_id: Name
    round: Count
    step: Count
    phase: str = ""
    """What it does in this round, as heartbeats will tell."""


class Leaving(Message, frozen=True, kw_only=True, tag="leaving"):
    """The worker wants to leave after the current step (it got SIGTERM)."""

    worker_id: Name
    reason: str


class Done(Message, frozen=True, kw_only=True, tag="done"):
    """The worker has finished a training together with its whole round; its script goes on."""

    worker_id: Name
    training: Count
    step: Count
    raised: bool = False
    """Whether an error of callbacks has ended it. The script goes on if it catches the error."""


class Refused(Message, frozen=True, kw_only=True, tag="refused"):
    """The worker ends because something is configured wrongly. A restart would not help."""

    worker_id: Name
    message: str
    step: Count = 0
    """Steps that the worker took until it found the mistake."""


class Progress(Message, frozen=True, kw_only=True):
    """The progress of a training, for a display that is drawn again and again in place.

    A job that evaluates or predicts sends it, too; such a job has one epoch.
    """

    what: str = ""
    """The activity of the workers if they do not train, such as "evaluating"."""
    epoch: Count
    """From 1."""
    epochs: Count | None
    """Epochs of the training. None means "not known", also in `steps` and `left_s`."""
    step: Count
    """Steps of the epoch that have been taken."""
    steps: Count | None
    metrics: dict[str, float | None]
    """Metrics of the epoch so far. None means "not a number", which JSON cannot express."""
    examples_per_s: float
    workers: Count
    left_s: float | None
    """Seconds until the training ends."""
    ended: bool = False
    """Whether the epoch is over, with its evaluation."""


class Console(Message, frozen=True, kw_only=True, tag="console"):
    """Text of rank 0 for the terminal of the launcher, already formatted."""

    worker_id: Name
    text: str
    progress: Progress | None = None
    """The same as the text, for a launcher that draws it; `text` may be empty then."""


COMMIT = "commit"
"""`unit` of a checkpoint whose `step` counts the commits of a user's own loop."""


class Record(Message, frozen=True, kw_only=True, tag="record"):
    """An entry of rank 0 for `events.jsonl`."""

    worker_id: Name
    training: Count
    entry: events.WorkerEntry


class Notice(Message, frozen=True, kw_only=True, tag="notice"):
    """A line for people, which is shown and recorded once, whichever worker sends it first.

    Several workers may send the same line, because one after the other becomes rank 0.
    """

    worker_id: Name
    training: Count
    """The training that the line is about. The same line is shown again for another training."""
    text: str
    entry: events.WorkerEntry | None = None
    """An entry for `events.jsonl`."""
    prefix: str = ""
    """Shown before the text. Notices that differ only in the prefix count as the same."""


WorkerEvent = (
    Joined | Heartbeat | Alive | Running | Leaving | Done | Refused | Console | Record | Notice
)


class ClaimRequest(Message, frozen=True, kw_only=True):
    """`POST /v1/claim`: asks whether this worker may do something that only one worker is to do.

    The master holds the request until it has decided, or for `LONG_POLL_S`. Together, the fields
    from `name` to `call` identify the same call of the script on all workers.
    """

    worker_id: Name
    name: str
    """What is to be done once, such as the path of a file to be saved; empty for a block of the
    script."""
    training: Count
    """The training that the worker has last begun; 0 before the first."""
    finished: bool
    """Whether the worker has finished that training."""
    progress: Count
    """Atomic steps taken in that training; 0 outside of it."""
    number: Count
    """Index of the call among the calls with this name at that point, from 0."""
    call: Count
    """Index of the call among all calls at that point, from 0."""
    again: bool = False
    """Whether the worker has seen that the result is missing, although it had been done."""


class ClaimReply(Message, frozen=True, kw_only=True):
    """Answer to a `ClaimRequest`. If it is neither granted nor done, ask again."""

    granted: bool = False
    done: bool = False
    holder: str = ""
    """Id of the worker that is doing it now; empty if none is."""
    result: str = ""
    """What the newest `ReleaseRequest` of this name told. Empty if a later call has been done."""


class ReleaseRequest(Message, frozen=True, kw_only=True):
    """`POST /v1/release`: the worker has done what was granted, or has failed."""

    worker_id: Name
    name: str
    done: bool
    result: str = ""
    """What the workers that did not do it, or do it next, have to know."""


class RootReply(Message, frozen=True, kw_only=True):
    """Answer to `GET /v1/root`: the worker that stands for all workers."""

    worker_id: str


class EnterRequest(Message, frozen=True, kw_only=True):
    """Asks for a place in the round after `from_round`, at a committed state.

    `progress` counts the atomic steps (training and evaluation) behind the worker's state and
    orders states by age; `step` is the number of optimizer steps among them. Both start from 0 in
    every training.
    """

    worker_id: Name
    training: Count
    from_round: Count
    has_state: bool
    progress: Count
    step: Count
    failure: str = ""
    """Why the last round ended for this worker, if a collective failed; empty otherwise."""
    idle_s: Seconds = 0.0
    """Seconds since its last finished step, if it has taken one."""


class Assignment(Message, frozen=True, kw_only=True):
    """The place of one worker in one round."""

    round: int
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    members: tuple[str, ...]
    """Worker ids by rank."""
    sync: bool
    """Whether some member is behind rank 0, so that all take part in a broadcast of its state."""
    root_has_state: bool
    """False if no worker holds a state: rank 0 loads the newest checkpoint or starts afresh."""
    rendezvous: str
    """Value for HOROVOD_GLOO_RENDEZVOUS_ADDR: address and secret name space of this round.

    The master leaves the host out. The worker fills in the host by which it reaches the master.
    """


ALONE = Assignment(
    round=0,
    rank=0,
    size=1,
    local_rank=0,
    local_size=1,
    cross_rank=0,
    cross_size=1,
    members=("w0",),
    sync=False,
    root_has_state=False,
    rendezvous="",
)
"""The place of a process that trains alone."""


class EnterReply(Message, frozen=True, kw_only=True):
    """Answer to an `EnterRequest`: at most one field is set. If none is set, ask again."""

    assignment: Assignment | None = None
    leave: str = ""
    """Why the worker is to leave instead; empty if it is not."""
    training_over: bool = False
    """Whether the job has finished the training of the request, so that the script is to go on."""


class WorkerUpdate(Message, frozen=True, kw_only=True):
    """ChangeSignal for one worker. Rounds are numbered upwards, so all fields only ever grow."""

    version: int
    pending_through: int = 0
    """Rounds up to this number end after the current step: the membership changes."""
    broken_through: int = 0
    """Rounds up to this number have lost a member: their collectives cannot complete."""
    stop: str = ""
    """Not empty if the whole job stops: the reason."""
    leave: str = ""
    """Not empty if this worker has to leave after the current step: the reason."""
    stalled: bool = False
    """Whether this worker holds the others up for long."""


class InputReply(Message, frozen=True, kw_only=True):
    """Answer to `GET /v1/input`: where the workers that hold a state read; how many there are."""

    position: InputPosition | None = None
    training: Count = 0
    """The training in which workers hold a state; 0 if no worker holds one."""
    workers: Count = 0
    """Workers of the job, with those that only start, but without those that have to leave."""
