"""The membership of a process that Horovod's own `horovodrun` has started as one of several.

All processes stay from the beginning to the end. There is one round and no master, and rank 0 stays
rank 0.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import threading
import time
from pathlib import Path

import msgspec
import requests

from hvd_elastic_keras.common import errors, events, protocol
from hvd_elastic_keras.common.errors import CollectiveFailedError, ElasticError
from hvd_elastic_keras.settings import launched_by
from hvd_elastic_keras.worker.abortable import Abortable
from hvd_elastic_keras.worker.reporter import TerminalReporter
from hvd_elastic_keras.worker.session import EntryReport, SoloSession

SCOPE = "hvd_elastic_keras"
"""Name space in the store of `horovodrun`, beside Horovod's own name spaces."""
ASK_AGAIN_S = 0.05
STORE_TIMEOUT_S = 30.0


class LaunchedSession(SoloSession):
    """The session of one process of a fixed number. Rank 0 speaks for all.

    Attributes:
      place: place of this process, from its beginning to its end.
      client: decides which process has a turn, as a master would.
      in_training: whether the training last begun is not finished yet.
    """

    def __init__(self, launched: launched_by.LaunchedPlace) -> None:
        super().__init__()
        self.launched = launched
        self.place = assignment_of(launched)
        self.worker_id = worker_id_of(launched.rank)
        self.client = TurnsOfRanks(launched)
        self.in_training = False
        self._reporter: RankReporter = RankReporter(launched.rank)

    @property
    def progress(self) -> int:
        """Atomic steps that led to the present state of the training; 0 outside of trainings."""
        return self._reporter.progress

    def join(
        self,
        communicator: Abortable,
        num_micro_batches: int,
        warm_up_s: float,
        each: bool = False,
    ) -> None:
        """Begins the next training. Tells nobody: there is no master."""
        super().join(communicator, num_micro_batches, warm_up_s, each)
        self.in_training, self._reporter.progress = True, 0

    def enter(self, report: EntryReport) -> protocol.Assignment:
        """Returns the same place in each training.

        Raises:
          CollectiveFailedError: a process is gone, and no other one will take its place.
        """
        if report.failure:
            command = launched_by.elastic_command(self.launched.size, script())
            raise CollectiveFailedError(
                f"{report.failure}. Another process is gone, and horovodrun starts no other one. "
                f"Start all again; to go on without it: {command}"
            )
        return msgspec.structs.replace(self.place, round=self.training)

    def finish(self, *, raised: bool = False) -> None:
        """Ends the training. Tells nobody: there is no master."""
        self.in_training, self._reporter.progress = False, 0


class RankReporter(TerminalReporter):
    """Shows what rank 0 shows: the other processes have the same lines.

    Attributes:
      progress: the newest position. All processes identify their turns by it.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.progress = 0

    def at(
        self,
        phase: str,
        step: int,
        progress: int,
        reading: protocol.InputPosition | None = None,
    ) -> None:
        """Notes the position."""
        self.progress = progress

    def tell(self, text: str, entry: events.WorkerEntry | None = None, prefix: str = "") -> None:
        """Shows the line on rank 0 only."""
        if self._rank == 0:
            super().tell(text, entry, prefix)


class TurnsOfRanks:
    """Gives turns to rank 0. The other ranks learn from the launcher's store that it is done.

    This class takes the place of `MasterClient` in `Turns`.
    """

    def __init__(self, launched: launched_by.LaunchedPlace) -> None:
        self._rank = launched.rank
        self._url = f"http://{launched.address}:{launched.port}/{SCOPE}"
        self._claimed = ""

    def root(self) -> str:
        """Returns the process that stands for all: rank 0."""
        return worker_id_of(0)

    def claim(self, request: protocol.ClaimRequest) -> protocol.ClaimReply:
        """Grants the turn to rank 0. The other ranks wait for a while until rank 0 has done it.

        If a result is missing although rank 0 has done it, it is on another host. A claim with
        `again` is therefore granted to every rank.
        """
        if self._rank == 0 or request.again:
            self._claimed = _key_of(request)
            return protocol.ClaimReply(granted=True)
        done = self._awaited(_key_of(request), protocol.LONG_POLL_S) is not None
        return protocol.ClaimReply(done=True) if done else protocol.ClaimReply(holder="rank 0")

    def release(self, request: protocol.ReleaseRequest) -> None:
        """Tells the others that the turn is done. If it has failed, all processes end."""
        if request.done and self._rank == 0:
            self._request("PUT", self._claimed)

    def _awaited(self, key: str, within_s: float) -> str | None:
        """Returns a value of the store as soon as it is there; None if it does not come in time."""
        give_up_at = time.monotonic() + within_s
        while time.monotonic() < give_up_at:
            if (answer := self._request("GET", key)).ok:
                return answer.text
            threading.Event().wait(ASK_AGAIN_S)
        return None

    def _request(self, method: str, key: str, data: bytes = b"done") -> requests.Response:
        try:
            return requests.request(
                method, f"{self._url}/{key}", data=data, timeout=STORE_TIMEOUT_S
            )
        except requests.RequestException as error:
            raise ElasticError(f"The store of horovodrun does not answer: {error}") from error


def _key_of(request: protocol.ClaimRequest) -> str:
    """Returns a key that is the same on all ranks for the same call of the script."""
    names = (request.name, request.training, request.finished, request.progress, request.number)
    return hashlib.sha256(repr(names).encode()).hexdigest()


def worker_id_of(rank: int) -> str:
    """Returns the name of a process in messages."""
    return f"rank {rank}"


def assignment_of(launched: launched_by.LaunchedPlace) -> protocol.Assignment:
    """Returns the place in the only round. All processes take over the state of rank 0."""
    return protocol.Assignment(
        round=1,
        rank=launched.rank,
        size=launched.size,
        local_rank=launched.local_rank,
        local_size=launched.local_size,
        cross_rank=launched.cross_rank,
        cross_size=launched.cross_size,
        members=tuple(worker_id_of(rank) for rank in range(launched.size)),
        sync=True,
        root_has_state=False,
        rendezvous=f"{launched.address}:{launched.port}",
    )


@functools.cache
def session_of_launcher() -> LaunchedSession | None:
    """Returns the session of this process, or None.

    It is None if `horovodrun` has not started this process as one of several. The environment is
    read only once: Horovod's variables change when a process initialises Horovod for itself.
    """
    launched = launched_by.launched_place()
    if launched is None:
        return None
    errors.show_in_one_line()
    session = LaunchedSession(launched)
    session.reporter.tell(
        f"[elastic] horovodrun has started {launched.size} processes: they train together, but "
        "none can join or leave, and all end with the first that is lost. For that: "
        f"{launched_by.elastic_command(launched.size, script())}"
    )
    return session


def script() -> str:
    """Returns the command line of this process without the interpreter, or "script.py"."""
    name = sys.argv[0] if sys.argv else ""
    return " ".join(sys.argv) if Path(name).suffix == ".py" else "script.py"
