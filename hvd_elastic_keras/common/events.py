"""The types of the entries in `events.jsonl`, which records what happens in a job.

An entry is one line of JSON. It begins with `seq` (a number that grows by 1 with every line),
`time` (seconds since 1970) and `event` (the name of its type, the `tag` below). The fields of its
type follow. docs/reference.md describes the same for users.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class Entry(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Base of all entries."""


# --- the job -----------------------------------------------------------------------------


class JobStarted(Entry, frozen=True, kw_only=True, tag="job_started"):
    """A launcher starts or continues the job of a directory."""

    job_dir: str
    model: str
    num_workers: int
    training: dict[str, Any]
    """The settings of the training; empty if a script decides them."""
    term: int = 0
    """A number that grows with each launcher of the job directory."""


class MasterRestarted(Entry, frozen=True, kw_only=True, tag="master_restarted"):
    """A launcher takes over workers that have outlived the launcher before it."""

    term: int
    """A number that grows with each launcher of the job directory."""
    workers: list[str]
    """Ids of the workers that are taken over."""


class JobStopping(Entry, frozen=True, kw_only=True, tag="job_stopping"):
    """Somebody has asked the job to stop."""

    reason: str


class JobFinished(Entry, frozen=True, kw_only=True, tag="job_finished"):
    """The launcher ends."""

    status: str
    """One of "finished", "stopped" and "failed"."""
    reason: str
    training: int
    step: int
    """Step of that training."""
    spent_s: dict[str, float] = msgspec.field(default_factory=dict)
    """Seconds since the job's start, by what they were spent on; see `goodput.Part`."""


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
    """A launched worker waits for a machine, or has got one."""

    worker_id: str
    reason: str
    """Why the worker cannot start; empty if it can now."""


class WorkerRegistered(Entry, frozen=True, kw_only=True, tag="worker_registered"):
    """A worker has come by itself (`run --join`) and is starting."""

    worker_id: str
    host: str


class WorkerReady(Entry, frozen=True, kw_only=True, tag="worker_ready"):
    """A worker is warm for a training."""

    worker_id: str
    pid: int
    training: int
    start_up_s: float | msgspec.UnsetType = msgspec.UNSET
    """Seconds since the worker's launch; only set when the worker is warm for the first time."""
    warm_up_s: float


class WorkerRefused(Entry, frozen=True, kw_only=True, tag="worker_refused"):
    """A worker has found something to be configured wrongly, which ends the job."""

    worker_id: str
    message: str


class WorkerExited(Entry, frozen=True, kw_only=True, tag="worker_exited"):
    """A worker is gone."""

    worker_id: str
    pid: int | None
    cause: str
    failed: bool
    evicted: bool = False
    """Whether the job has given the worker up: it was silent, late, or held the others up."""
    step: int


class WorkerStalled(Entry, frozen=True, kw_only=True, tag="worker_stalled"):
    """A worker is alive but does not go on: it holds the others up, or is silent."""

    worker_id: str
    step: int


# --- slots and rounds --------------------------------------------------------------------


class SlotsGranted(Entry, frozen=True, kw_only=True, tag="slots_granted"):
    """More workers may run on a host."""

    host: str
    slots: int
    """Number of granted slots."""
    workers: list[str]
    """Ids of the workers that start."""


class SlotsRevoked(Entry, frozen=True, kw_only=True, tag="slots_revoked"):
    """Slots of a host are revoked."""

    host: str
    slots: int
    """Number of revoked slots."""
    deadline_s: float | None
    workers: list[str]
    """Ids of the workers that leave."""
    reason: str


class RoundOpened(Entry, frozen=True, kw_only=True, tag="round_opened"):
    """The master begins to form the next round."""

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
    """Micro-batches that each member computes per step, by rank; empty for a user's own loop."""
    reason: str
    step: int
    stall_s: float
    """Seconds from the last step of the old round until all members go on.

    The three fields below are its parts, one after the other.
    """
    noticed_s: float = 0.0
    """Seconds until the master knew that the round was broken; 0 if the change was planned."""
    entered_s: float = 0.0
    """Seconds until all members had come and had their places."""
    synced_s: float = 0.0
    """Seconds until all members were connected and held the same state."""
    steps_lost: int


# --- what workers record -----------------------------------------------------------------


class StepsTaken(Entry, frozen=True, kw_only=True, tag="steps_taken"):
    """The progress of the job, and its speed since the previous entry of this type."""

    training: int
    epoch: int | None
    """From 0; None for an evaluation, predictions and a user's own loop, which have no epochs."""
    step: int
    unit: str | msgspec.UnsetType = msgspec.UNSET
    """The unit that is counted and timed, if it is not steps."""
    metrics: dict[str, float]
    """The finite values of the loss and the metrics, in the epoch or evaluation so far."""
    examples_per_s: float | None
    """None if the number of examples is not known."""
    step_s: float
    """Seconds per step."""
    part_s: list[float] = msgspec.field(default_factory=list)
    """Part of `step_s`: seconds that each worker computed, by rank; empty if not measured."""
    input_s: float | None = None
    """Part of `step_s`: seconds that rank 0 waited for its examples; None if not measured."""
    compute_s: float | None = None
    """Part of `step_s`: mean seconds that rank 0 computed in timed steps; None without any."""
    allreduce_s: float | None = None
    """Seconds that rank 0 then waited for the sums of all workers."""
    learning_rate: float | None = None
    """The learning rate of the newest step; None if the model has no optimizer."""
    epochs: int | None = None
    """Epochs of the training; None if their number is not known."""
    steps_left: int | None = None
    """Steps until the end of the training; None if their number is not known."""


class EpochEnd(Entry, frozen=True, kw_only=True, tag="epoch_end"):
    """An epoch is over."""

    epoch: int
    """From 0."""
    step: int
    metrics: dict[str, Any]
    audited: bool = True
    """Whether the epoch has a ledger."""


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
    """By worker id: time per example, relative to the fastest worker."""


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
    """The unit that `step` counts, if it is not steps."""
    path: str


class CheckpointLoaded(Entry, frozen=True, kw_only=True, tag="checkpoint_loaded"):
    """Training goes on from a checkpoint."""

    step: int
    unit: str | msgspec.UnsetType = msgspec.UNSET
    path: str


class BestModelSaved(Entry, frozen=True, kw_only=True, tag="best_model_saved"):
    """The model of the best epoch so far is on disk."""

    epoch: int
    """From 0."""
    step: int
    metric: str
    value: float
    path: str


class TensorBoardUsed(Entry, frozen=True, kw_only=True, tag="tensorboard_used"):
    """The user's own callback writes for TensorBoard."""

    directory: str
    """The absolute path on the host of rank 0."""
    host: str
    """The name of that host, as it calls itself."""


WorkerEntry = (
    StepsTaken
    | EpochEnd
    | EpochAudited
    | SharesBalanced
    | BatchChanged
    | RecordsSkipped
    | CheckpointSaved
    | CheckpointLoaded
    | BestModelSaved
    | TensorBoardUsed
)
"""Entries that workers send for the master to write. The other entries are the master's own."""
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
    """Returns the name of an entry type.

    >>> name_of(RoundOpened)
    'round_opened'
    """
    return str(kind.__struct_config__.tag)


def fields_of(entry: Entry) -> dict[str, Any]:
    """Returns the fields of an entry as JSON values, without its name."""
    content: dict[str, Any] = msgspec.to_builtins(entry)
    return {name: value for name, value in content.items() if name != "event"}


def step_of(entry: WorkerEntry) -> int | None:
    """Returns the step that a worker's entry is about; None if it is about no step."""
    if isinstance(entry, EpochAudited | RecordsSkipped | TensorBoardUsed):
        return None
    return entry.step


def parse(content: Mapping[str, Any]) -> AnyEntry | None:
    """Returns an entry from the JSON of its line; None if the entry fits no known type."""
    for_converting: Any = AnyEntry
    try:
        entry: AnyEntry = msgspec.convert(dict(content), for_converting)
    except msgspec.ValidationError:
        return None
    return entry
