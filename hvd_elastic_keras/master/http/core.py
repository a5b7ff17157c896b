"""What the HTTP endpoint needs of the controller, for workers, joiners and people."""

from __future__ import annotations

from typing import Protocol

from hvd_elastic_keras.common import control, joining, messages, protocol
from hvd_elastic_keras.observe.job_course import JobCourse


class WorkerDesk(Protocol):
    """What the server needs to answer workers."""

    def impossible_in(self, message: messages.Message) -> str:
        """What cannot be true of a worker's message; empty if nothing is known against it."""

    def on_worker_event(self, event: protocol.WorkerEvent) -> None:
        """A worker tells what happened."""

    async def enter(self, request: protocol.EnterRequest) -> protocol.EnterReply:
        """Waits for a place in the next round."""

    async def update_after(self, worker_id: str, version: int) -> protocol.WorkerUpdate:
        """Waits until there is something newer than `version`."""

    def input_position(self) -> protocol.InputReply:
        """Where those read who hold a state."""

    async def claim(self, request: protocol.ClaimRequest) -> protocol.ClaimReply:
        """Waits until it is decided who does something."""

    def release(self, request: protocol.ReleaseRequest) -> None:
        """A worker has done what it asked for, or has failed to."""

    def root(self) -> protocol.RootReply:
        """Who stands for all workers."""


class JoinDesk(Protocol):
    """What the server needs to let workers join."""

    description: joining.JobDescription

    def join(self, request: joining.JoinRequest) -> joining.JoinReply:
        """A worker is about to start on a host."""

    def ended(self, request: joining.ExitRequest) -> joining.ExitReply:
        """The process of a worker that has joined is gone."""


class Core(Protocol):
    """What the server needs of the controller."""

    @property
    def workers(self) -> WorkerDesk:
        """Answers workers."""

    @property
    def joiners(self) -> JoinDesk:
        """Lets workers join."""

    @property
    def course(self) -> JobCourse:
        """What has happened so far, for people."""

    async def kept(self) -> None:
        """Waits until all that follows from messages so far is on disk."""

    def status(self) -> control.JobStatus:
        """The present state, for people."""

    def change_workers(self, request: control.ChangeRequest) -> control.ChangeReply:
        """Adds or removes workers."""

    def change_slots(self, request: control.SlotsRequest) -> control.SlotsReply:
        """Grants or revokes slots."""
