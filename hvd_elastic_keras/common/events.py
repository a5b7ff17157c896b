"""What happens in a job, as the entries of `events.jsonl`: one type for each, and all their names.

An entry is one line of JSON with the fields of its type, after `seq` (a number that grows by 1 with
every line), `time` (seconds since 1970) and `event` (the name below). docs/reference.md tells users
the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class Entry(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Base of all entries."""


# --- the job -----------------------------------------------------------------------------


class JobStarted(Entry, frozen=True, kw_only=True, tag="job_started"):
    """A launcher begins, or goes on with, the job of a directory."""

    job_dir: str
    model: str
    num_workers: int
    training: dict[str, Any]
    """What is trained and how; empty where a script says so."""
    term: int = 0
    """Grows with each launcher of the job directory."""


class MasterRestarted(Entry, frozen=True, kw_only=True, tag="master_restarted"):
    """A launcher goes on with workers that have outlived the one before."""

    term: int
    """Grows with each launcher of the job directory."""
    workers: list[str]
    """Who is taken over."""


class JobStopping(Entry, frozen=True, kw_only=True, tag="job_stopping"):
    """Somebody has asked the job to stop."""

    reason: str


class JobFinished(Entry, frozen=True, kw_only=True, tag="job_finished"):
    """The launcher ends."""

    status: str
    """finished, stopped or failed."""
    reason: str
    training: int
    step: int
    """Of that training."""
    spent_s: dict[str, float] = msgspec.field(default_factory=dict)
    """What the time since the job's start was spent on; see `goodput.Part`."""


class Waiting(Entry, frozen=True, kw_only=True, tag="waiting"):
    """There are fewer workers than a round needs."""

    workers: int
    min_workers: int


# --- workers -----------------------------------------------------------------------------


class WorkerStarted(Entry, frozen=True, kw_only=True, tag="worker_started"):
    """The process of a worker runs."""

    worker_id: str
    host: str
    pid: int


class WorkerPending(Entry, frozen=True, kw_only=True, tag="worker_pending"):
    """A worker that was launched waits for a machine, or has got it."""

    worker_id: str
    reason: str
    """Why it cannot start; empty if it can now."""


class WorkerRegistered(Entry, frozen=True, kw_only=True, tag="worker_registered"):
    """A worker has come by itself (`run --join`), and starts."""

    worker_id: str
    host: str


class WorkerReady(Entry, frozen=True, kw_only=True, tag="worker_ready"):
    """A worker is warm for a training."""

    worker_id: str
    pid: int
    training: int
    start_up_s: float | msgspec.UnsetType = msgspec.UNSET
    """From its launch on; the first time only."""
    warm_up_s: float


class WorkerRefused(Entry, frozen=True, kw_only=True, tag="worker_refused"):
    """A worker has found something to be configured wrongly, with which the job ends."""

    worker_id: str
    message: str


class WorkerExited(Entry, frozen=True, kw_only=True, tag="worker_exited"):
    """A worker is gone."""

    worker_id: str
    pid: int | None
    cause: str
    failed: bool
    evicted: bool = False
    """Whether the job has given it up: it was silent, late, or held the others up."""
    step: int


class WorkerStalled(Entry, frozen=True, kw_only=True, tag="worker_stalled"):
    """A worker holds the others up, or is silent. It is alive and does not go on."""

    worker_id: str
    step: int


# --- slots and rounds --------------------------------------------------------------------


class SlotsGranted(Entry, frozen=True, kw_only=True, tag="slots_granted"):
    """More workers may run on a host."""

    host: str
    slots: int
    """How many more."""
    workers: list[str]
    """Those that start."""


class SlotsRevoked(Entry, frozen=True, kw_only=True, tag="slots_revoked"):
    """Slots of a host are taken back."""

    host: str
    slots: int
    """How many fewer."""
    deadline_s: float | None
    workers: list[str]
    """Those that leave."""
    reason: str


class RoundOpened(Entry, frozen=True, kw_only=True, tag="round_opened"):
    """The next round is put together."""

    round: int
    reason: str


class RoundRunning(Entry, frozen=True, kw_only=True, tag="round_running"):
    """The members of a round train."""

    round: int
    training: int
    world_size: int
    members: list[str]
    """Worker ids by rank."""
    micro_batches: list[int]
    """That each computes per step, by rank; empty for a loop of one's own."""
    reason: str
    step: int
    stall_s: float
    """From the last step of the old round until all go on."""
    noticed_s: float = 0.0
    """Of this: until the master knew that the round was broken; 0 if the change was planned."""
    entered_s: float = 0.0
    """Of this: until all members had come and had their places."""
    synced_s: float = 0.0
    """Of this: until all were connected and held the same state."""
    steps_lost: int


# --- what workers record -----------------------------------------------------------------


class StepsTaken(Entry, frozen=True, kw_only=True, tag="steps_taken"):
    """How far the job has come, and how fast it has gone since the entry before."""

    training: int
    epoch: int | None
    """From 0; None where there are none: in an evaluation, predictions, a loop of one's own."""
    step: int
    unit: str | msgspec.UnsetType = msgspec.UNSET
    """What is counted, and timed, if not steps."""
    metrics: dict[str, float]
    """Of the epoch, or the evaluation, so far: the loss and those metrics that are finite."""
    examples_per_s: float | None
    """None where nobody knows the examples."""
    step_s: float
    """Seconds per step."""
    part_s: list[float] = msgspec.field(default_factory=list)
    """Of this: what each worker computed, by rank; empty where nobody measures it."""
    input_s: float | None = None
    """Of this: how long rank 0 waited for its examples; None where nobody measures it."""
    compute_s: float | None = None
    """Of this: what rank 0 computed, on average over those steps that were timed; None if none."""
    allreduce_s: float | None = None
    """How long it then waited for the sums of all workers."""
    learning_rate: float | None = None
    """Of the newest step; None where the model has no optimizer."""


class EpochEnd(Entry, frozen=True, kw_only=True, tag="epoch_end"):
    """An epoch is over."""

    epoch: int
    """From 0."""
    step: int
    metrics: dict[str, Any]
    audited: bool = True
    """Whether it has a ledger."""


class EpochAudited(Entry, frozen=True, kw_only=True, tag="epoch_audited"):
    """The ledger of an epoch has been judged."""

    epoch: int
    exact: bool
    verdict: str


class SharesBalanced(Entry, frozen=True, kw_only=True, tag="shares_balanced"):
    """Faster workers compute more micro-batches from now on."""

    step: int
    micro_batches: list[int]
    slowness: dict[str, float]
    """By worker id: time per example against the fastest."""


class BatchChanged(Entry, frozen=True, kw_only=True, tag="batch_changed"):
    """The global batch has grown or shrunk with the workers."""

    step: int
    workers: int
    batch_size: int
    learning_rate_scale: float
    learning_rate_scale_now: float
    warm_up_steps: int


class RecordsSkipped(Entry, frozen=True, kw_only=True, tag="records_skipped"):
    """Corrupt records are left out."""

    count: int
    records: list[dict[str, Any]]


class CheckpointSaved(Entry, frozen=True, kw_only=True, tag="checkpoint_saved"):
    """A checkpoint is complete on disk."""

    step: int
    unit: str | msgspec.UnsetType = msgspec.UNSET
    """What `step` counts, if not steps."""
    path: str


class CheckpointLoaded(Entry, frozen=True, kw_only=True, tag="checkpoint_loaded"):
    """Training goes on from a checkpoint."""

    step: int
    unit: str | msgspec.UnsetType = msgspec.UNSET
    path: str


class TensorBoardUsed(Entry, frozen=True, kw_only=True, tag="tensorboard_used"):
    """The user's own callback writes for TensorBoard."""

    directory: str
    """Absolute, on the host of rank 0."""
    host: str
    """Its name, as the host calls itself."""


WorkerEntry = (
    StepsTaken
    | EpochEnd
    | EpochAudited
    | SharesBalanced
    | BatchChanged
    | RecordsSkipped
    | CheckpointSaved
    | CheckpointLoaded
    | TensorBoardUsed
)
"""What workers send for the master to write; the other entries are its own."""
AnyEntry = (
    JobStarted
    | MasterRestarted
    | JobStopping
    | JobFinished
    | Waiting
    | WorkerPending
    | WorkerStarted
    | WorkerRegistered
    | WorkerReady
    | WorkerRefused
    | WorkerExited
    | WorkerStalled
    | SlotsGranted
    | SlotsRevoked
    | RoundOpened
    | RoundRunning
    | WorkerEntry
)


def name_of(kind: type[Entry]) -> str:
    """The name of a type of entries.

    >>> name_of(RoundOpened)
    'round_opened'
    """
    return str(kind.__struct_config__.tag)


def fields_of(entry: Entry) -> dict[str, Any]:
    """The fields of an entry in the form of JSON, without its name."""
    content: dict[str, Any] = msgspec.to_builtins(entry)
    return {name: value for name, value in content.items() if name != "event"}


def step_of(entry: WorkerEntry) -> int | None:
    """The step that an entry of a worker is about, if it is about one."""
    if isinstance(entry, EpochAudited | RecordsSkipped | TensorBoardUsed):
        return None
    return entry.step


def parse(content: Mapping[str, Any]) -> AnyEntry | None:
    """An entry from the JSON of its line; None if it is of no known type."""
    for_converting: Any = AnyEntry
    try:
        entry: AnyEntry = msgspec.convert(dict(content), for_converting)
    except msgspec.ValidationError:
        return None
    return entry
