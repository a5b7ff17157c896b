"""The number of workers and the time limits of a job, validated on construction."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from hvd_elastic_keras.common.errors import ConfigurationError, require
from hvd_elastic_keras.settings.option import Option


@dataclasses.dataclass(frozen=True)
class JobConfig:
    """The number of workers and the time limits of the master (in seconds).

    Attributes:
      start_timeout_s: how long a first warm worker waits for others that are still starting.
      join_window_s: how long a warm worker waits for starting workers, to join together with them.
      stop_grace_s: how long workers may take to leave when the job stops.
      awaits_joiners: whether a job without workers waits for workers that come by themselves.
      own_machines: whether the launcher gives each worker its own machine, such as a pod, which
        others may take back at any time. Another worker then takes its place.
    """

    num_workers: Annotated[
        int,
        Option(
            "Workers to start with and to keep up, warm spares included. 'auto': one for each GPU "
            "of this host (--gpus_per_worker is then 1 if not given) or, without GPUs, for each "
            "processor, as far as the memory suffices.",
            least=1,
            may_be_auto=True,
        ),
    ] = 2
    min_workers: Annotated[int, Option("Below this number the job waits.", least=1)] = 1
    max_workers: Annotated[
        int,
        Option(
            "Most workers that the job may have, started and added ones. Those beyond the number "
            "of micro-batches wait as warm spares, which take over when a worker fails.",
            least=1,
            default="twice --num_workers, but at least 16",
        ),
    ] = 16
    max_restarts: Annotated[
        int,
        Option(
            "Replacements for failed workers within --restart_window_s.",
            least=0,
            more="A worker that fails before it is ready is replaced after 1, 2, 4, … seconds, at "
            "most 30 while no worker trains and 600 while others do; failures to start end a job "
            "only if no worker trains. With several hosts, one on which workers have failed three "
            "times within 15 minutes is left alone for 10 seconds, then twice as long each time, "
            "up to 10 minutes; meanwhile a host that has room takes the replacement.",
        ),
    ] = 10
    restart_window_s: Annotated[
        float,
        Option(
            "Seconds after which a replacement counts no more, if training has gone on since.",
            least=0,
            more="Slots that stayed empty because no restart was left are filled then.",
        ),
    ] = 3600.0
    heartbeat_timeout_s: Annotated[
        float,
        Option(
            "Seconds after which a silent worker is ended and replaced, unless its process runs.",
            least=3,
            more="If it runs, code in C keeps Python's lock (GIL): a line says so, and "
            "`--stall_timeout_s` counts.",
        ),
    ] = 15.0
    stall_timeout_s: Annotated[
        float,
        Option(
            "Seconds after which a worker is ended and replaced if its callback or input holds the "
            "others up. A line names the worker after a minute.",
            least=1,
            more="The worker's log then has the stacks of its threads. A worker that hangs while "
            "it computes its part of a step is replaced after 30 times as long as such a part has "
            "ever taken, but at least 5 minutes, if that is sooner; never before 3 times as long. "
            "A worker whose process runs may be silent for this time, too.",
        ),
    ] = 1800.0
    start_up_timeout_s: Annotated[
        float,
        Option(
            "Seconds in which a worker has to come from its start to its training; otherwise it is "
            "ended and replaced. A line names the worker after a minute.",
            least=1,
        ),
    ] = 7200.0
    enter_timeout_s: Annotated[
        float,
        Option(
            "How many seconds a round waits for a called worker, from the first one that has come, "
            "before it goes on without it. Must be longer than a step.",
            least=1,
        ),
    ] = 60.0
    start_timeout_s: float = 120.0
    join_window_s: float = 5.0
    wait_timeout_s: Annotated[
        float,
        Option("How many seconds a job below --min_workers waits before it fails.", least=0),
    ] = 1800.0
    master_timeout_s: Annotated[
        float,
        Option(
            "Seconds that workers train on if the launcher is killed. Meanwhile the same command "
            "(or --resume) takes them over; after that, rank 0 writes a checkpoint, and all leave.",
            least=1,
            more="It writes none if [it may be cut off](hosts.md). A worker that has finished "
            "waits as long for a master to tell.",
        ),
    ] = 600.0
    stop_grace_s: float = 30.0
    awaits_joiners: bool = False
    own_machines: bool = False

    def __post_init__(self) -> None:
        least = {"num_workers": 0 if self.awaits_joiners else 1, "min_workers": 1}
        for name, value in vars(self).items():
            require(value >= least.get(name, 0), name, value, f">= {least.get(name, 0)}")
        at_start = self.min_workers if self.awaits_joiners else self.num_workers
        if not self.min_workers <= max(at_start, self.num_workers) <= self.max_workers:
            raise ConfigurationError(
                f"min_workers={self.min_workers}, num_workers={self.num_workers} and "
                f"max_workers={self.max_workers} are not in this order. "
                "Use min_workers <= num_workers <= max_workers."
            )
