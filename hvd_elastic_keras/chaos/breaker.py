"""Lets the faults of a plan happen to a running job, and follows their effects.

`Holds` makes workers wait at the beginning of a phase, so that chaos can hit even a short phase.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from hvd_elastic_keras.chaos import victims
from hvd_elastic_keras.chaos.outcome import (
    Cost,
    Fired,
    Outcome,
    Report,
    cost_of,
    is_settled,
    victim,
    wanted_phases,
    what_it_waits_for,
)
from hvd_elastic_keras.chaos.plan import LASTING, LAUNCHER, Fault, Plan
from hvd_elastic_keras.chaos.temporary import NotPossibleError, Temporary, missing_for_cuts
from hvd_elastic_keras.chaos.victims import JournalWatch
from hvd_elastic_keras.cli import control_job
from hvd_elastic_keras.common import files
from hvd_elastic_keras.common.control import JobStatus, WorkerStatus
from hvd_elastic_keras.common.errors import (
    ConfigurationError,
    MasterUnreachableError,
)
from hvd_elastic_keras.common.phase_hold import DIRECTORY, WANTED, Wanted
from hvd_elastic_keras.launchers.base import LOCALHOST
from hvd_elastic_keras.observe import job_history

POLL_S = 0.05
RETURN_WITHIN_S = 60.0
"""Seconds to wait for somebody to start the job again after its launcher has been killed."""

SIGNALS = {"kill": signal.SIGKILL, "terminate": signal.SIGTERM}


class Breaker:
    """Carries out a plan on a job. Use it in a `with` block, which ends all holds at its end.

    Raises:
      ConfigurationError: no such job runs on this machine.
    """

    def __init__(self, job_dir: Path, plan: Plan, tell: Callable[[str], None]) -> None:
        self._job_dir = job_dir
        self._tell = tell
        _check_rights(plan)
        self._launcher = self._find_launcher()
        self._waiting = dict(enumerate(plan.faults, 1))
        self._plan = dict(self._waiting)
        self._why_not = dict.fromkeys(self._plan, "its time had not come")
        self._fired: dict[int, Fired] = {}
        self._holds: list[victims.Hold | Temporary] = []
        self._opened: list[victims.Victim] = []
        self._ended = "interrupted"
        self._gone_since: float | None = None
        self._phases = Holds(job_dir)
        self._journal: JournalWatch | None = None
        self._dead_journal = 0
        self._step = 0

    def __enter__(self) -> Breaker:
        return self

    def __exit__(self, *_: object) -> None:
        if self._journal:
            self._journal.close()
        self._phases.close()
        for hold in self._holds:
            hold.end()
        for process in (*self._opened, self._launcher):
            process.close()

    def run(self, timeout_s: float) -> None:
        """Lets each fault happen at its moment, and waits until the cost of the last is known."""
        began = time.monotonic()
        while not self._is_over():
            passed_s = time.monotonic() - began
            if passed_s > timeout_s:
                self._ended = f"{timeout_s:g} s had passed (--timeout_s)"
                return
            status = self._status()
            if status is not None:
                self._step = status.step
                self._let_happen(status, passed_s)
                waiting = self._waiting.values()
                self._phases.want(wanted_phases(waiting, status, passed_s))
            self._look_at_journal(passed_s)
            time.sleep(POLL_S)

    def report(self) -> Report:
        """Returns the report: the outcome of each fault of the plan."""
        costs = self._costs()
        return Report(
            job_dir=str(self._job_dir),
            ended=self._ended,
            outcomes=tuple(self._outcome(number, costs) for number in self._plan),
        )

    # --- how far it is -------------------------------------------------------------------

    def _is_over(self) -> bool:
        if self._has_ended():
            self._ended = "the job had ended"
            return True
        if self._waiting or not all(hold.is_over() for hold in self._holds):
            return False
        costs = self._costs()
        if not all(is_settled(self._plan[n], f, costs[n]) for n, f in self._fired.items()):
            return False
        self._ended = "all faults have happened"
        return True

    def _has_ended(self) -> bool:
        """Whether no launcher runs, and none is expected to come back."""
        if not self._launcher.is_gone():
            return False
        with contextlib.suppress(ConfigurationError):
            found = self._find_launcher()
            self._launcher.close()
            self._launcher, self._gone_since = found, None
            return False
        if not (self._job_dir / files.MASTER).exists():
            return True  # the job came to its end
        killed = any(self._plan[n].target == LAUNCHER for n in self._fired)
        killed = killed or bool(self._journal and self._journal.killed)
        self._gone_since = self._gone_since or time.monotonic()
        return not killed or time.monotonic() - self._gone_since > RETURN_WITHIN_S

    def _outcome(self, number: int, costs: Mapping[int, Cost]) -> Outcome:
        fault, fired = self._plan[number], self._fired.get(number)
        if fired is None:
            why_not = f"{self._why_not[number]} when {self._ended}"
            return Outcome(number=number, fault=fault, why_not=why_not)
        return Outcome(number=number, fault=fault, fired=fired, cost=costs[number])

    def _costs(self) -> dict[int, Cost]:
        history, all_fired = job_history.read(self._job_dir), self._fired.values()
        return {
            number: cost_of(self._plan[number], fired, history, all_fired)
            for number, fired in self._fired.items()
        }

    # --- the job -------------------------------------------------------------------------

    def _find_launcher(self) -> victims.Victim:
        endpoint = files.read_endpoint(self._job_dir)
        found = victims.launcher_of(self._job_dir, endpoint.pid)
        if isinstance(found, str):
            raise ConfigurationError(
                f"The job in {self._job_dir} does not run on this machine: {found}. Give the "
                "--job_dir of a job that runs here."
            )
        return found

    def _status(self) -> JobStatus | None:
        try:
            return control_job.read_status(self._job_dir)
        except (ConfigurationError, MasterUnreachableError):
            return None  # the launcher ends, comes back, or is suspended

    # --- faults --------------------------------------------------------------------------

    def _let_happen(self, status: JobStatus, passed_s: float) -> None:
        for number, fault in list(self._waiting.items()):
            if fault.journal_bytes is not None:
                continue
            why_not = what_it_waits_for(fault, status, passed_s)
            try:
                why_not = why_not or self._try(number, fault, status)
            except NotPossibleError as error:
                self._why_not[number] = str(error)
                del self._waiting[number]
                continue
            if why_not:
                self._why_not[number] = why_not
                continue
            del self._waiting[number]
            if fault.min_members:
                return  # the next fault must know which workers are left

    def _try(self, number: int, fault: Fault, status: JobStatus) -> str:
        """Lets a fault happen. Returns why it cannot, or an empty text."""
        if fault.target == LAUNCHER:
            fired = Fired(time=_now(), step=status.step)
            self._hurt(self._launcher, fault)
        else:
            worker = victim(fault, status.workers, self._phases.held())
            if isinstance(worker, str):
                return worker
            fired = Fired(
                time=_now(), worker_id=worker.worker_id, rank=worker.rank, step=status.step
            )
            if why_not := self._reach(worker, fault):
                return why_not
            self._phases.let_go(worker.worker_id)
        self._note(number, fired)
        return ""

    def _note(self, number: int, fired: Fired) -> None:
        self._fired[number] = fired
        who = fired.worker_id or f"the {LAUNCHER}"
        where = f"step {fired.step}"
        if fired.journal_bytes is not None:
            where = f"{fired.journal_bytes} bytes of its journal"
        kind = self._plan[number].kind
        self._tell(f"{number} of {len(self._plan)}: {kind} {who} at {where}")

    def _look_at_journal(self, passed_s: float) -> None:
        """Lets the first fault that waits for the journal happen, even in a later launcher."""
        number, past_bytes = self._first_for_journal(passed_s)
        if past_bytes is None:
            return
        if self._journal is None:
            self._journal = JournalWatch(
                self._job_dir, past_bytes, self._dead_journal, self._present_launcher
            )
        watch = self._journal
        self._why_not[number] = f"the journal had {watch.length()} of {past_bytes} bytes"
        if watch.killed:
            self._dead_journal, length = watch.killed
            watch.close()
            self._journal = None
            del self._waiting[number]
            self._note(number, Fired(time=_now(), step=self._step, journal_bytes=length))

    def _first_for_journal(self, passed_s: float) -> tuple[int, int | None]:
        for number, fault in self._waiting.items():
            if fault.journal_bytes is not None and passed_s >= fault.after_s:
                return number, fault.journal_bytes
        return 0, None

    def _present_launcher(self) -> victims.Victim | None:
        with contextlib.suppress(ConfigurationError):
            return self._find_launcher()
        return None

    def _reach(self, worker: WorkerStatus, fault: Fault) -> str:
        """Lets a fault happen to a worker. Returns why it cannot, or an empty text."""
        if fault.kind == "network_cut":
            return self._cut(worker, fault)
        process = victims.worker_of(self._job_dir, worker)
        if isinstance(process, str):
            return process
        self._opened.append(process)
        self._hurt(process, fault)
        return ""

    def _cut(self, worker: WorkerStatus, fault: Fault) -> str:
        if worker.host == LOCALHOST:
            return f"{worker.worker_id} runs on this machine, which is cut off from nobody"
        address = fault.address or victims.address_of(worker.host)
        if not address:
            return f"{worker.host} is no name with an address here; the plan may give its address"
        port = files.read_endpoint(self._job_dir).port
        self._holds.append(Temporary(fault.kind, fault.duration_s, address, port))
        return ""

    def _hurt(self, process: victims.Victim, fault: Fault) -> None:
        if fault.kind == "disk_full":
            self._holds.append(Temporary(fault.kind, fault.duration_s, process.pid))
        elif fault.kind in LASTING:
            share = fault.stopped_share if fault.kind == "slow" else 1.0
            self._holds.append(victims.hold(process, fault.duration_s, share))
        else:
            process.send(SIGNALS[fault.kind])


def _check_rights(plan: Plan) -> None:
    """Raises `ConfigurationError` if the plan cuts networks and this process cannot do so."""
    cuts = any(fault.kind == "network_cut" for fault in plan.faults)
    if cuts and (missing := missing_for_cuts()):
        raise ConfigurationError(
            f"A network_cut was asked for, but chaos lacks {missing}. Nothing was done."
        )


def _now() -> float:
    """Returns the present time, rounded as in `events.jsonl`."""
    return round(time.time(), 3)


class Holds:
    """The side of chaos: says where workers wait, and lets them go on. Close it after use."""

    def __init__(self, job_dir: Path) -> None:
        self._directory = job_dir / DIRECTORY
        self._wanted = Wanted(phases={})

    def want(self, phases: dict[str, tuple[str, ...]]) -> None:
        """Holds workers at these phases from now on, and lets all others go on."""
        wanted = Wanted(phases=phases)
        if wanted == self._wanted:
            return
        self._wanted = wanted
        if not phases:
            self.close()
            return
        self._directory.mkdir(exist_ok=True)
        files.write_json(self._directory / WANTED, msgspec.to_builtins(wanted))
        for worker_id, phase in self.held().items():
            if not wanted.holds(worker_id, phase):
                self.let_go(worker_id)

    def held(self) -> dict[str, str]:
        """Returns, by id of a waiting worker, the phase at whose beginning it waits."""
        if not self._wanted.phases:
            return {}
        found = {}
        for path in self._directory.iterdir():
            with contextlib.suppress(OSError):
                if path.suffix != Path(WANTED).suffix:
                    found[path.name] = path.read_text()
        return found

    def let_go(self, worker_id: str) -> None:
        """Lets a worker go on, if it waits."""
        (self._directory / worker_id).unlink(missing_ok=True)

    def close(self) -> None:
        """Lets all workers go on."""
        shutil.rmtree(self._directory, ignore_errors=True)
