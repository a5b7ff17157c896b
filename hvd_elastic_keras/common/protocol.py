"""Messages between workers and the master: versioned JSON, checked on reading.

Workers tell the master what happened with one of the `WorkerEvent` types (`POST /v1/events`),
ask for a place in the next round with `EnterRequest` (`POST /v1/enter`, answered when the round
is complete) and learn of changes with `WorkerUpdate` (`GET /v1/updates`, a long poll). One that has
no place yet asks what the others know of the model, and where they read (`GET /v1/input`).

A script may train several times in one job. Each process counts its trainings from 1; since all
run the same script, training N of one is training N of all.
"""

from __future__ import annotations

from hvd_elastic_keras.common import events
from hvd_elastic_keras.common.messages import Count, Message, Name, Seconds

NOTICE = "elastic-notice "
"""Begins a line of the check before a job that the launcher is to show; JSON follows."""
TERM_HEADER = "X-Elastic-Term"
"""In each answer: which of the masters of a job directory gives it. They are counted upwards."""
FINISHED = "finished"
"""Why a job stops that has done what was asked of it."""
NO_WORKER = "this worker is no longer part of the job"
"""Why one leaves whom the master has given up."""
ALIVE_INTERVAL_S = 2.0
LONG_POLL_S = 20.0
"""How long the master holds an unanswered request before it says "ask again"."""


class Joined(Message, frozen=True, kw_only=True, tag="joined"):
    """A worker is warm (imported, traced) for a training and wants a place in a round of it."""

    worker_id: Name
    training: Count
    pid: Count
    num_micro_batches: Count
    """Micro-batches in a global batch: no more workers than this can be of use. 0 is no limit."""
    each: bool = False
    """Whether every worker computes so many, however many there are: the batch grows with them."""
    warm_up_s: Seconds


class InputPosition(Message, frozen=True, kw_only=True):
    """Which batch of an input the next step takes, where it can be reached by reading only.

    The fields are those of `state.cursor.Cursor`.
    """

    training: Count
    progress: Count
    phase: Name
    epoch: Count
    step: Count
    worker_batches: Count = 0
    batches_per_pass: Count | None = None
    """Of the training data, if somebody knows."""


class Heartbeat(Message, frozen=True, kw_only=True, tag="heartbeat"):
    """Sent twice a second; `phase` is for people (`ctl status`)."""

    worker_id: Name
    training: Count
    round: Count
    step: Count
    progress: Count
    phase: Name
    in_collective: bool = False
    """Whether the training thread waits with the others, or is about to."""
    computing: bool = False
    """Whether it computes its part of a step, for which the others may wait."""
    reading: InputPosition | None = None


class Alive(Message, frozen=True, kw_only=True, tag="alive"):
    """The process of a worker runs, says who looks after it, whatever the worker itself says.

    Joiners tell it of theirs every `ALIVE_INTERVAL_S`.
    """

    worker_id: Name


class Running(Message, frozen=True, kw_only=True, tag="running"):
    """The worker holds the root's state, at `step`, and starts its first step of this round."""

    worker_id: Name
    round: Count
    step: Count


class Leaving(Message, frozen=True, kw_only=True, tag="leaving"):
    """The worker wants to leave after the current step (it got SIGTERM)."""

    worker_id: Name
    reason: str


class Done(Message, frozen=True, kw_only=True, tag="done"):
    """The worker has finished a training with everyone of its round; its script goes on."""

    worker_id: Name
    training: Count
    step: Count


class Refused(Message, frozen=True, kw_only=True, tag="refused"):
    """The worker ends because something is configured wrongly: to start it again is no use."""

    worker_id: Name
    message: str
    step: Count = 0
    """Steps that it has taken until it found out."""


class Progress(Message, frozen=True, kw_only=True):
    """How far a training is, for a display that is drawn again and again in place.

    Of a job that evaluates or predicts, too: it has one epoch.
    """

    what: str = ""
    """What the workers do if they do not train, such as "evaluating"."""
    epoch: Count
    """From 1."""
    epochs: Count | None
    """Of the training; None if nobody knows, as below."""
    step: Count
    """Steps of the epoch that have been taken."""
    steps: Count | None
    metrics: dict[str, float | None]
    """Of the epoch so far; None is not a number: JSON has no word for that."""
    examples_per_s: float
    workers: Count
    left_s: float | None
    """Until the training ends."""
    ended: bool = False
    """Whether the epoch is over, with its evaluation."""


class Console(Message, frozen=True, kw_only=True, tag="console"):
    """Text of rank 0 for the terminal of the launcher, already formatted."""

    worker_id: Name
    text: str
    progress: Progress | None = None
    """What the text says, for a launcher that draws it; `text` may be empty then."""


COMMIT = "commit"
"""`unit` of a checkpoint whose `step` counts commits of a loop of one's own."""


class Record(Message, frozen=True, kw_only=True, tag="record"):
    """An entry of rank 0 for `events.jsonl`."""

    worker_id: Name
    training: Count
    entry: events.WorkerEntry


class Notice(Message, frozen=True, kw_only=True, tag="notice"):
    """A line for people, which is shown and recorded once, whoever tells it first.

    Several workers may know the same: one after the other they become rank 0 and tell it.
    """

    worker_id: Name
    training: Count
    """The one that it is about: another one may tell the same again."""
    text: str
    entry: events.WorkerEntry | None = None
    """For `events.jsonl`."""
    prefix: str = ""
    """Shown before the text. Another one does not make it another notice."""


WorkerEvent = (
    Joined | Heartbeat | Alive | Running | Leaving | Done | Refused | Console | Record | Notice
)


class ClaimRequest(Message, frozen=True, kw_only=True):
    """`POST /v1/claim`: may this worker do what only one is to do? Held until there is an answer.

    Together, the fields but `worker_id` name the same call of the script on all workers.
    """

    worker_id: Name
    name: str
    """Path of the file that is to be saved; empty for a block of the script."""
    training: Count
    """The training that the worker has last begun; 0 before the first."""
    finished: bool
    """Whether that training is behind it."""
    progress: Count
    """Atomic steps in it; 0 outside of it."""
    number: Count
    """The how many-th call at that point with this name, from 0."""
    call: Count
    """The how many-th call at that point with any name, from 0."""
    again: bool = False
    """Whether the worker has seen that what was done is not there (any more)."""


class ClaimReply(Message, frozen=True, kw_only=True):
    """Neither granted nor done: ask again."""

    granted: bool = False
    done: bool = False
    holder: str = ""
    """Who is doing it now; empty if nobody is."""


class ReleaseRequest(Message, frozen=True, kw_only=True):
    """`POST /v1/release`: the worker has done what was granted, or has failed."""

    worker_id: Name
    name: str
    done: bool


class RootReply(Message, frozen=True, kw_only=True):
    """Answer to `GET /v1/root`: who stands for all workers."""

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
    """False if nobody holds a state: rank 0 loads the newest checkpoint or starts afresh."""
    rendezvous: str
    """Value for HOROVOD_GLOO_RENDEZVOUS_ADDR: address and secret name space of this round.

    The master leaves the host to the worker, which knows by which it reaches the master.
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
"""The place of a process that is its own world."""


class EnterReply(Message, frozen=True, kw_only=True):
    """At most one of: an assignment, an order to leave, "it is over". None of them: ask again."""

    assignment: Assignment | None = None
    leave: str = ""
    """Why the worker is to leave instead; empty if it is not."""
    training_over: bool = False
    """Whether the job has finished the training of the request: the script is to go on."""


class WorkerUpdate(Message, frozen=True, kw_only=True):
    """What one worker has to know. Rounds are numbered upwards, so all fields only ever grow."""

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
    """Answer to `GET /v1/input`: where those read who hold a state."""

    position: InputPosition | None = None
    training: Count = 0
    """That in which workers hold a state; 0 if there are none."""
