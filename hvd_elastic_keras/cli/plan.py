"""The plan of a job, for people: two lines at its start, and the whole plan for `--dry_run`.

The numbers come from the code that decides in the job: the cut of the batch, the shares, the
schedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hvd_elastic_keras.cli.job_directory import shown
from hvd_elastic_keras.cli.job_request import JobRequest
from hvd_elastic_keras.common import batch_plan, files, host_port, predictions
from hvd_elastic_keras.launchers.kept_workers import kept_workers
from hvd_elastic_keras.loop.schedule import Schedule
from hvd_elastic_keras.observe.console import counted
from hvd_elastic_keras.settings.job_spec import EVALUATE, seed_of_script
from hvd_elastic_keras.settings.options import BATCH, RunOptions
from hvd_elastic_keras.settings.training_config import TrainingConfig
from hvd_elastic_keras.state.checkpoint import directories
from hvd_elastic_keras.state.cursor import Cursor

Description = dict[str, Any]
"""The findings of the check of a model (`api/model_job.py`)."""


def lines_at_start(request: JobRequest, found: Description) -> Iterator[str]:
    """Yields what is trained and how its batch is cut; for a script, yields nothing."""
    spec = request.spec
    if spec is None:
        return
    training = spec.training
    steps_per_epoch = steps_of_epoch(request, found)
    if not spec.trains:
        verb = "evaluate" if spec.job == EVALUATE else "predict"
        yield (
            f"{request.name}: {verb} {found['num_examples']:,} examples of "
            f'dataset("{spec.split}") in {counted(steps_per_epoch, "step")}'
        )
        yield f"weights: {shown(Path(found['weights']))}, {found['parameters']:,} parameters"
        yield _batch_line(request, training)
        return
    length = (
        counted(training.steps, "step")
        if training.steps is not None
        else f"{counted(training.epochs or 0, 'epoch')} of {counted(steps_per_epoch, 'step')}"
    )
    yield (
        f"{request.name}: {found['parameters']:,} parameters, {found['num_examples']:,} examples "
        f"(+{found['num_validation_examples']:,} for validation), {length}"
    )
    yield _batch_line(request, training)


def _batch_line(request: JobRequest, training: TrainingConfig) -> str:
    workers = request.workers_of_start
    batch = f"global batch {training.global_batch_size} = {request.cut}"
    if training.batch_grows:
        batch = f"batch {training.batch_size_per_worker} per worker = {request.cut}"
    spares = workers - request.most_members
    waiting = f", of which {spares} will wait as {'a spare' if spares == 1 else 'spares'}"
    return f"{batch}; starting {counted(workers, 'worker')}{waiting if spares > 0 else ''}"


def steps_of_epoch(request: JobRequest, found: Description) -> int:
    """Returns the optimizer steps of an epoch, with the number of workers at the start."""
    steps: int = found["steps_per_epoch"]
    if request.spec and request.spec.training.batch_grows:
        return -(-steps // max(1, request.workers_of_start))
    return steps


def whole_plan(request: JobRequest, found: Description | None) -> Iterator[str]:
    """Yields the lines of `--dry_run`.

    Args:
      found: findings of the check of the model; None for a script, which is not run.
    """
    if found is None:
        yield f"script: {' '.join(request.script)}; batch, steps and model are its own to decide"
        yield f"seed: {_seed(request)}"
    else:
        yield from lines_at_start(request, found)
        if request.spec and request.spec.trains:
            yield _steps(request, found)
            yield from _batch_norm(request, found)
        yield _shares(request)
    yield _workers(request)
    yield _places(request)
    yield _what_it_leaves(request)
    yield f"job directory: {shown(request.job_dir)}, {_what_is_there(request, found)}"
    yield _master(request)


def _seed(request: JobRequest) -> str:
    if request.seed is not None:
        return f"{request.seed}, for all random numbers for which the script has no seed of its own"
    kept = seed_of_script(request.job_dir / files.JOB)
    found = "drawn at the start" if kept is None else f"{kept}, as when this job was started"
    return f"{found}; --seed gives another"


def _steps(request: JobRequest, found: Description) -> str:
    if request.spec is None:
        return ""
    training, in_epoch = request.spec.training, steps_of_epoch(request, found)
    schedule = Schedule(epochs=training.epochs, steps=training.steps)
    steps = schedule.steps_left(Cursor(), in_epoch, in_epoch) or 0
    text = f"steps: {counted(in_epoch, 'step')} per epoch, {steps} in all"
    return f"{text}, with the workers of the start" if training.batch_grows else text


def _batch_norm(request: JobRequest, found: Description) -> Iterator[str]:
    """Yields the batch over which batch normalisation normalises, if the model has any."""
    count = found.get("batch_norms", 0)
    if not count:
        return
    if request.options.batch_norm == BATCH:
        yield f"batch norm: over the whole batch, in {counted(count, 'layer')}"
    else:
        yield (
            f"batch norm: over each micro-batch ({counted(count, 'layer')}; those with "
            "synchronized=True over the whole batch); --batch_norm=batch for the whole batch, "
            "costs a round of collectives forward and one backward for each layer"
        )


def _shares(request: JobRequest) -> str:
    """Returns the shares by rank, at the start and with one worker fewer or more."""
    count = request.num_micro_batches or 0
    if request.spec and request.spec.training.batch_grows:
        return f"micro-batches per worker and step: {count}, whatever the number of workers"
    members = request.most_members
    others = [n for n in (members - 1, members + 1) if 0 < n <= min(count, request.job.max_workers)]

    def shares(workers: int) -> str:
        return batch_plan.describe_shares(batch_plan.shares_of(workers, count))

    text = "".join(f"; with {counted(n, 'worker')} {shares(n)}" for n in others)
    return f"micro-batches per worker and step: {shares(max(1, members))}{text}"


def _workers(request: JobRequest) -> str:
    job = request.job
    waiting = (
        " when enough have come by themselves (--join)" if _come_by_themselves(request) else ""
    )
    return (
        f"workers: {request.workers_of_start} at the start{waiting}, at least {job.min_workers}, "
        f"at most {job.max_workers}; up to {counted(job.max_restarts, 'replacement')} within "
        f"{job.restart_window_s:g} s"
    )


def _come_by_themselves(request: JobRequest) -> bool:
    return request.job.awaits_joiners and request.hosts is None


def _places(request: JobRequest) -> str:
    if request.pods:
        return f"hosts: pods of {request.pods.image} in namespace {request.pods.cluster.namespace}"
    if request.hosts:
        slots = ", ".join(f"{host} {count}" for host, count in request.hosts.first.items())
        return f"hosts: {slots} (workers; asked for now, they may come and go)"
    if not request.workers_here:
        return "hosts: those from which workers join"
    threads = counted(request.threads_per_worker, "thread")
    return f"hosts: this one, each worker with {threads} for an operation"


def _what_it_leaves(request: JobRequest) -> str:
    spec = request.spec
    if spec is None or spec.trains:
        return f"checkpoints: {_checkpoints(request.options)}, to {_checkpoint_dir(request)}"
    if spec.job == EVALUATE:
        return f"results: to {shown(request.job_dir / files.RESULTS)}"
    output = Path(spec.output)
    begun = ", which is gone on with" if (output / predictions.IDENTITY).exists() else ""
    return f"predictions: to {shown(output)}{begun}"


def _checkpoints(options: RunOptions) -> str:
    """Returns when checkpoints are written, and how many are kept."""
    every = (
        (options.checkpoint_every_n_epochs, "epoch"),
        (options.checkpoint_every_n_steps, "step"),
        (options.checkpoint_every_minutes, "minute"),
    )
    due = [f"every {f'{n:g} {noun}s' if n != 1 else noun}" for n, noun in every if n]
    due = [*due, "at the end"]
    return f"{', '.join(due)} (the newest {options.keep_checkpoints} are kept)"


def _checkpoint_dir(request: JobRequest) -> str:
    return request.options.checkpoint_dir or shown(request.job_dir / files.CHECKPOINTS)


def _what_is_there(request: JobRequest, found: Description | None) -> str:
    """Returns what the job would go on with, if there is anything."""
    if living := kept_workers(request.job_dir / files.WORKERS):
        return f"where workers of a killed launcher train: {', '.join(living)}"
    if found is not None:
        step = found["checkpoint_step"]
    else:
        there = directories.by_age(request.job_dir / files.CHECKPOINTS)
        step = directories.step_of(there[-1]) if there else None
    if step is not None:
        return f"going on from the checkpoint of step {step}"
    if request.spec and not request.spec.trains and request.job_dir.exists():
        return "which is there"
    return "which is there, without a checkpoint" if request.job_dir.exists() else "a new one"


def _master(request: JobRequest) -> str:
    master = request.master
    port = f"port {master.port}" if master.port else "a free port"
    how = "with TLS" if master.tls else "without TLS"
    who = "this host only" if host_port.is_loopback(master.bind) else f"other hosts, {how}"
    return f"launcher: listens at {master.bind}, {port}, for {who}"
