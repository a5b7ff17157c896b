"""Membership under random sequences of plausible events: invariants hold, and it is never stuck.

`Job.send` in `membership_driver.py` checks the invariants of single transitions.
"""

from __future__ import annotations

import dataclasses
import enum

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hvd_elastic_keras.common import control
from hvd_elastic_keras.common.control import JoinRequest
from hvd_elastic_keras.launchers.base import LOCALHOST, WorkerExit
from hvd_elastic_keras.master.machine import actions as act
from hvd_elastic_keras.master.machine.actions import Outcome
from hvd_elastic_keras.master.machine.change_request import (
    Change,
    SlotsChange,
    plan_change,
    plan_slots,
)
from hvd_elastic_keras.master.machine.slots import place_for
from hvd_elastic_keras.master.machine.state import State, WorkerPhase
from tests.unit.master.membership_driver import SIGKILL, Job


class Stage(enum.Enum):
    """The state of a simulated worker process."""

    STARTING = "starting"
    AT_ENTRANCE = "at the entrance"
    PLACED = "initialises and syncs"
    TRAINING = "training"
    DISMISSED = "told to leave"
    DONE = "done"


@dataclasses.dataclass
class Process:
    """A simulated worker process."""

    stage: Stage = Stage.STARTING
    training: int = 0
    step: int = 0
    has_state: bool = False
    got_sigterm: bool = False


class World:
    """Simulated worker processes and their launcher around the machine under test."""

    def __init__(
        self,
        num_workers: int,
        micro_batches: int,
        min_workers: int,
        num_trainings: int = 1,
        awaits_joiners: bool = False,
    ) -> None:
        self.num_trainings = num_trainings
        """Number of trainings in the script."""
        self.num_ended = 0
        """Number of workers that have reached the end of the script."""
        self.job = Job(
            num_workers,
            micro_batches,
            min_workers=min(min_workers, num_workers),
            max_restarts=4,
            heartbeat_timeout_s=1e9,
            awaits_joiners=awaits_joiners,
        )
        self.processes: dict[str, Process] = {}
        self.seen_actions = 0
        self.deaf = False
        """Whether the master is killed before anybody is told of its decisions."""
        self.past: list[State] = []
        """The states before each operation."""
        self.absorb()

    # --- what processes do ---------------------------------------------------------------

    def absorb(self) -> None:
        """Applies the newest actions to the processes."""
        if self.deaf:
            return
        new = self.job.actions[self.seen_actions :]
        self.seen_actions += len(new)
        killed = []
        for action in new:
            if isinstance(action, act.Launch):
                assert action.worker_id not in self.processes, "an id is used once"
                self.processes[action.worker_id] = Process()
            elif isinstance(action, act.Kill):
                if self.processes.pop(action.worker_id, None):
                    killed.append(action.worker_id)
            elif isinstance(action, act.Reply) and action.worker_id in self.processes:
                process = self.processes[action.worker_id]
                if action.reply.leave:
                    process.stage = Stage.DISMISSED
                elif action.reply.training_over:
                    assert process.stage is Stage.AT_ENTRANCE
                    process.stage = Stage.DONE
                else:
                    assert process.stage is Stage.AT_ENTRANCE
                    process.stage = Stage.PLACED
        for worker_id in killed:
            self.job.send(WorkerExit(worker_id, SIGKILL))
            self.absorb()

    def ids(self, *stages: Stage) -> list[str]:
        return [w for w, p in self.processes.items() if p.stage in stages]

    def round_over(self, worker_id: str) -> bool:
        """Returns whether the worker knows that its round has ended."""
        number, state = self.job.places[worker_id].round, self.job.state
        leaves = self.processes[worker_id].got_sigterm or bool(state.stop)
        return leaves or number <= max(state.rounds.pending_through, state.rounds.broken_through)

    def enter(self, worker_id: str, failure: str = "") -> None:
        process = self.processes[worker_id]
        process.stage = Stage.AT_ENTRANCE
        # A worker with a state took its last step a while ago.
        idle_s = 0.75 if process.has_state else 0.0
        self.job.enter(
            worker_id,
            step=process.step,
            has_state=process.has_state,
            failure=failure,
            idle_s=idle_s,
        )
        self.absorb()

    def join(self, worker_id: str) -> None:
        process = self.processes[worker_id]
        process.training += 1
        process.step, process.has_state = 0, False
        self.job.joined(worker_id, process.training)
        self.absorb()
        self.enter(worker_id)

    def confirm(self, worker_id: str) -> None:
        """Lets a worker get the root's state and start to train."""
        process, place = self.processes[worker_id], self.job.places[worker_id]
        root = self.processes.get(place.members[0], process)
        process.step, process.has_state = max(process.step, root.step), True
        process.stage = Stage.TRAINING
        self.job.running(worker_id, step=process.step)
        self.absorb()

    def end(self, worker_id: str, return_code: int) -> None:
        del self.processes[worker_id]
        self.job.send(WorkerExit(worker_id, return_code))
        self.absorb()

    # --- random operations: each picks a worker for which it is plausible ------------------

    def operate(self, name: str, choice: int, seconds: float) -> None:
        self.past.append(self.job.state)
        self.job.now += seconds
        candidates = {
            "join": self.ids(Stage.STARTING),
            "confirm": self.ids(Stage.PLACED),
            "leave_round": [w for w in self.ids(Stage.TRAINING) if self.round_over(w)],
            "fail": self.ids(Stage.PLACED, Stage.TRAINING),
            "ask_again": self.ids(Stage.AT_ENTRANCE),
            "step": self.ids(Stage.TRAINING),
            "kill": list(self.processes),
            "sigterm": [w for w, p in self.processes.items() if p.stage is not Stage.DONE],
            "exit": [*self.ids(Stage.DISMISSED), *self.at_end_of_script()],
            "error": self.ids(Stage.DONE),
            "finish": self.ids(Stage.TRAINING),
            "next": self.with_another_training(),
        }
        if name in candidates:
            if candidates[name]:
                worker_id = candidates[name][choice % len(candidates[name])]
                getattr(self, f"do_{name}")(worker_id)
        else:
            getattr(self, f"do_{name}")(choice)

    def with_another_training(self) -> list[str]:
        done = self.ids(Stage.DONE)
        return [w for w in done if self.processes[w].training < self.num_trainings]

    def at_end_of_script(self) -> list[str]:
        done = self.ids(Stage.DONE)
        return [w for w in done if self.processes[w].training == self.num_trainings]

    def do_next(self, worker_id: str) -> None:
        self.join(worker_id)

    def do_error(self, worker_id: str) -> None:
        del self.processes[worker_id]
        self.job.fail(worker_id)
        self.absorb()

    def do_join(self, worker_id: str) -> None:
        self.join(worker_id)

    def do_confirm(self, worker_id: str) -> None:
        self.confirm(worker_id)

    def do_leave_round(self, worker_id: str) -> None:
        self.enter(worker_id)

    def do_fail(self, worker_id: str) -> None:
        self.enter(worker_id, failure="a collective failed")

    def do_ask_again(self, worker_id: str) -> None:
        self.enter(worker_id)

    def do_step(self, worker_id: str) -> None:
        self.processes[worker_id].step += 1
        self.job.heartbeat(worker_id, step=self.processes[worker_id].step)
        self.absorb()

    def do_kill(self, worker_id: str) -> None:
        self.end(worker_id, SIGKILL)

    def do_sigterm(self, worker_id: str) -> None:
        self.processes[worker_id].got_sigterm = True
        self.job.sigterm(worker_id)
        self.absorb()

    def do_exit(self, worker_id: str) -> None:
        self.num_ended += self.processes[worker_id].stage is Stage.DONE
        self.end(worker_id, 0)

    def do_finish(self, worker_id: str) -> None:
        """Ends a worker's training; all members of the running round are past the last step."""
        state = self.job.state
        outrun = self.processes[worker_id].training < state.training.number
        if outrun or (state.rounds.running and worker_id in state.rounds.running.members):
            self.processes[worker_id].stage = Stage.DONE
            self.job.done(worker_id, step=self.processes[worker_id].step)
            self.absorb()

    def do_tick(self, choice: int) -> None:
        self.job.send(act.Tick())
        self.absorb()

    def do_restart(self, choice: int) -> None:
        """Kills the master, maybe after it has written decisions that no worker was told of."""
        if self.job.end:
            return
        places = dict(self.job.places)
        self.deaf = True
        self.operate(UNHEARD[choice % len(UNHEARD)], choice, 0.0)
        self.deaf = False
        self.seen_actions = len(self.job.actions)
        if self.job.end:
            self.processes.clear()  # the next launcher ends all that it finds
            return
        self.job.places = places
        self.job.restart()
        known = self.job.state.workers
        # The next launcher ends workers that the master before had given up, and starts missing
        # workers.
        self.processes = {w: p for w, p in self.processes.items() if w in known}
        for worker_id in known.keys() - self.processes.keys():
            assert known[worker_id].phase is WorkerPhase.STARTING
            self.processes[worker_id] = Process()
        self.absorb()
        for worker_id in self.ids(Stage.AT_ENTRANCE):
            if worker_id in self.processes:
                self.enter(worker_id)

    def restart_with_damaged_journal(self, num_lost: int) -> None:
        """Restarts the master with the state of a few operations ago; all ids were in the logs."""
        if self.job.end:
            return
        unused = self.job.state.next_worker_number
        known = replace(self.past[-num_lost], next_worker_number=unused)
        self.seen_actions = len(self.job.actions)
        self.job.restart(known)
        self.processes = {w: p for w, p in self.processes.items() if w in known.workers}
        for worker_id in known.workers.keys() - self.processes.keys():
            self.job.send(WorkerExit(worker_id, None))
        self.absorb()
        for worker_id in [w for w, process in self.processes.items() if process.got_sigterm]:
            self.do_sigterm(worker_id)  # the master does not know of it: it tells again
        for worker_id in self.ids(Stage.AT_ENTRANCE):
            if worker_id in self.processes:
                self.enter(worker_id)

    def do_come(self, choice: int) -> None:
        """Lets a worker join by itself."""
        request = JoinRequest(key="", host=f"host{choice % 2}")
        worker_id, refused = place_for(self.job.config, self.job.state, request)
        if not refused and not self.job.state.stop:
            self.processes[worker_id] = Process()
            self.job.send(act.Registered(worker_id, request.host))
            self.absorb()

    def do_add(self, choice: int) -> None:
        self.change(control.ChangeRequest(add=1 + choice % 2))

    def do_remove(self, choice: int) -> None:
        self.change(control.ChangeRequest(remove=1))

    def change(self, request: control.ChangeRequest) -> None:
        plan = plan_change(self.job.config, self.job.state, request)
        for event in plan.events if isinstance(plan, Change) else ():
            self.job.send(event)
            self.absorb()

    def do_revoke(self, choice: int) -> None:
        deadline_s = (None, None, 0.5, 5.0)[choice % 4]
        self.change_slots(control.SlotsRequest(revoke=1 + choice // 4, deadline_s=deadline_s))

    def do_grant(self, choice: int) -> None:
        self.change_slots(control.SlotsRequest(grant=1 + choice % 2))

    def change_slots(self, request: control.SlotsRequest) -> None:
        before = self.job.state
        plan = plan_slots(self.job.config, before, request)
        if isinstance(plan, SlotsChange):
            self.job.send(plan.event)
            change = (request.grant or 0) - (request.revoke or 0)
            assert self.job.state.target_workers == before.target_workers + change
            if request.revoke:  # workers that leave by SIGTERM may have left fewer
                assert self.job.config.min_workers <= self.job.state.target_workers
            assert self.job.state.target_workers <= self.job.config.max_workers
            self.absorb()

    # --- calm ----------------------------------------------------------------------------

    def calm_down(self, all_finish: bool = False) -> None:
        """Lets every process do what it can, until nothing changes any more.

        With `all_finish`, the training also reaches its last step.
        """
        for _ in range(60 * self.num_trainings):
            moved = False
            if all_finish and self.job.state.rounds.running and not self.job.state.rounds.forming:
                for worker_id in self.ids(Stage.TRAINING):
                    self.do_finish(worker_id)
                    moved = True
            for worker_id, process in list(self.processes.items()):
                moved = self.advance(worker_id, process) or moved
            self.job.now += 6.0  # more than the join window
            self.do_tick(0)
            if not moved:
                return
        raise AssertionError("the membership does not come to rest")

    def advance(self, worker_id: str, process: Process) -> bool:
        if worker_id not in self.processes or self.job.end:
            return False
        if process.stage is Stage.STARTING:
            self.join(worker_id)
        elif process.stage is Stage.PLACED:
            self.confirm(worker_id)
        elif process.stage is Stage.TRAINING and self.round_over(worker_id):
            self.enter(worker_id)
        elif process.stage is Stage.TRAINING and (
            self.job.state.training.finishing or process.training < self.job.state.training.number
        ):
            self.do_finish(worker_id)
            return process.stage is Stage.DONE
        elif worker_id in self.with_another_training():
            self.join(worker_id)
        elif process.stage in (Stage.DISMISSED, Stage.DONE):
            self.do_exit(worker_id)
        else:
            return False
        return True


OPERATIONS = [
    *["join", "confirm", "leave_round", "tick"] * 4,
    *["fail", "ask_again", "step", "kill", "sigterm", "exit", "add", "remove"],
    *["revoke", "grant", "restart", "come", "come", "kill"],
]


UNHEARD = ["tick", "join", "leave_round", "fail", "confirm", "kill", "remove"]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    min_workers = draw(st.integers(1, 3))
    micro_batches = draw(st.integers(min_workers, 8))
    num_workers, awaits_joiners = draw(st.integers(1, 5)), draw(st.booleans())
    return World(num_workers, micro_batches, min_workers, awaits_joiners=awaits_joiners)


operations = st.lists(
    st.tuples(
        st.sampled_from(OPERATIONS), st.integers(0, 7), st.sampled_from([0.0, 0.1, 1.0, 7.0])
    ),
    min_size=10,
    max_size=60,
)


@settings(max_examples=150)
@given(world=worlds(), todo=operations)
def test_a_job_is_never_stuck_once_all_have_calmed_down(
    world: World, todo: list[tuple[str, int, float]]
) -> None:
    for operation in todo:
        world.operate(*operation)
    world.calm_down()
    hold_that_all_train(world)


@settings(max_examples=150)
@given(world=worlds(), todo=operations, num_lost=st.integers(1, 4), more=operations)
def test_a_job_whose_journal_was_damaged_is_never_stuck_once_all_have_calmed_down(
    world: World,
    todo: list[tuple[str, int, float]],
    num_lost: int,
    more: list[tuple[str, int, float]],
) -> None:
    for operation in todo:
        world.operate(*operation)
    world.restart_with_damaged_journal(num_lost)
    for operation in more:
        world.operate(*operation)
    world.calm_down()
    hold_that_all_train(world)


def hold_that_all_train(world: World) -> None:
    """Asserts that all workers train, unless too few are left."""
    state = world.job.state
    if world.job.end:
        return
    there = [w.host for w in state.workers.values() if w.by_itself and not w.leaving]
    for host in state.slots.keys() - {LOCALHOST}:
        assert state.slots[host] == there.count(host), "which goes with it"
    alive = {w for w, p in world.processes.items() if p.stage is not Stage.DISMISSED}
    if state.rounds.running and not state.rounds.forming:
        members = set(state.rounds.running.members)
        assert members == set(world.ids(Stage.TRAINING))
        assert len(members) == min(len(alive), world.job.micro_batches), "no place is left empty"
    else:
        assert len(alive) < world.job.config.min_workers
        assert state.rounds.waiting_since is not None, "it says that it waits"


@settings(max_examples=100)
@given(world=worlds(), before=operations, after=operations)
def test_a_job_of_which_one_worker_is_done_comes_to_its_end(
    world: World,
    before: list[tuple[str, int, float]],
    after: list[tuple[str, int, float]],
) -> None:
    world.calm_down()
    for operation in before:
        world.operate(*operation)
    world.operate("finish", 0, 0.0)
    finishing = world.job.state.training.finishing
    for operation in after:
        world.operate("finish" if operation[0] == "step" else operation[0], *operation[1:])
    world.calm_down()
    if finishing:
        hold_end_of_script(world)


def hold_end_of_script(world: World) -> None:
    """Asserts that the job succeeds if, and only if, a worker has reached the end of the script."""
    end = world.job.end
    assert end is not None
    if world.num_ended:
        assert end == act.EndJob(Outcome.FINISHED, "finished")
    else:
        assert not end.succeeded
        assert "no worker has come to the end of the script" in end.reason


@settings(max_examples=150)
@given(
    size=st.tuples(st.integers(1, 5), st.integers(0, 8)),
    num_trainings=st.integers(1, 3),
    todo=st.lists(
        st.tuples(
            st.sampled_from([*OPERATIONS, *["finish", "next", "error", "exit"] * 3]),
            st.integers(0, 7),
            st.sampled_from([0.0, 1.0, 130.0]),
        ),
        max_size=80,
    ),
)
def test_a_job_with_several_trainings_comes_to_its_end(
    size: tuple[int, int], num_trainings: int, todo: list[tuple[str, int, float]]
) -> None:
    world = World(*size, min_workers=1, num_trainings=num_trainings)
    for operation in todo:
        world.operate(*operation)
    world.calm_down(all_finish=True)
    state = world.job.state
    if world.job.end:
        # The job succeeds only after the last training, unless no worker was left to continue.
        assert not world.job.end.succeeded or state.training.number == num_trainings
    else:
        assert state.rounds.waiting_since is not None, "it says that it waits"


@settings(max_examples=50)
@given(world=worlds(), before=operations, after=operations)
def test_a_job_that_is_stopped_comes_to_its_end(
    world: World,
    before: list[tuple[str, int, float]],
    after: list[tuple[str, int, float]],
) -> None:
    for operation in before:
        world.operate(*operation)
    world.job.send(act.StopJob("interrupted"))
    launched = len(world.job.launches)
    world.absorb()
    for operation in after:
        world.operate(*operation)
    world.calm_down()
    assert world.job.end is not None
    assert len(world.job.launches) == launched, "a job that stops starts no worker"
