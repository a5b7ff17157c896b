"""The audience of a job, and the choice of the worker whose output the launcher's terminal shows.

It shows the output of one worker, since all print the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from hvd_elastic_keras.launchers.base import WorkerExit
from hvd_elastic_keras.master.http.core import Core, Extension
from hvd_elastic_keras.master.machine.state import State, WorkerPhase, root_of
from hvd_elastic_keras.observe.event_log import EntryListener


@dataclasses.dataclass(frozen=True)
class Audience:
    """The listeners to a job.

    Attributes:
      listeners: called with each entry of `events.jsonl`.
      extended_by: makers of extensions of the HTTP endpoint.
      all_output: whether the terminal shows the lines of all workers.
    """

    listeners: Sequence[EntryListener] = ()
    extended_by: Sequence[Callable[[Core], Extension]] = ()
    all_output: bool = False


NOBODY = Audience()
"""No listener and no extension; the terminal shows the lines of one worker."""


class ShownOutput:
    """Chooses the lines of the root. The log file of each worker holds all of its lines.

    If the root is lost or leaves, the lines of the next root are shown from then on. When the
    script of the root has ended well, the output is complete: no other worker's lines are shown.

    Args:
      everything: shows the lines of all workers.
    """

    def __init__(self, everything: bool) -> None:
        self._everything = everything
        self._gone: set[str] = set()
        """Workers that were shown until they ended. Their last lines may still arrive."""
        self._complete = False

    def shows(self, state: State, worker_id: str) -> bool:
        """Whether a line of this worker is shown."""
        if self._everything or worker_id in self._gone:
            return True
        return not self._complete and worker_id == root_of(state)

    def note_exit(self, state: State, event: WorkerExit) -> None:
        """Notes that a worker has ended, before it leaves the state."""
        worker = state.workers.get(event.worker_id)
        if worker is None or not self.shows(state, event.worker_id):
            return
        self._gone.add(event.worker_id)
        ended_well = worker.phase is WorkerPhase.DONE and not event.failed and not worker.leaving
        self._complete = self._complete or ended_well
