"""The parts of the controller that the HTTP endpoint uses, for workers, joiners and people."""

from __future__ import annotations

from typing import Protocol

from aiohttp import web

from hvd_elastic_keras.common import control, messages, protocol


class WorkerHandler(Protocol):
    """The part of the controller that answers workers."""

    def impossible_in(self, message: messages.Message) -> str:
        """Says what cannot be true in a worker's message; empty if nothing speaks against it."""

    def on_worker_event(self, event: protocol.WorkerEvent) -> None:
        """Handles a worker's message about what happened."""

    async def enter(self, request: protocol.EnterRequest) -> protocol.EnterReply:
        """Waits for a place in the next round."""

    async def update_after(self, worker_id: str, version: int) -> protocol.WorkerUpdate:
        """Returns a worker's update when the state is newer than `version`, or after a time."""

    def input_position(self) -> protocol.InputReply:
        """Returns the input position of the workers that hold a state."""

    async def claim(self, request: protocol.ClaimRequest) -> protocol.ClaimReply:
        """Waits until it is decided which worker does a task."""

    def release(self, request: protocol.ReleaseRequest) -> None:
        """Notes that a worker has done its task, or has failed to."""

    def root(self) -> protocol.RootReply:
        """Returns the root: the worker that stands for all."""


class JoinHandler(Protocol):
    """The part of the controller that lets workers join."""

    description: control.JobDescription

    def join(self, request: control.JoinRequest) -> control.JoinReply:
        """Answers a worker that is about to start on a host."""

    def ended(self, request: control.ExitRequest) -> control.ExitReply:
        """Notes that the process of a worker that has joined is gone."""


class Core(Protocol):
    """The parts of the controller that the server uses."""

    @property
    def workers(self) -> WorkerHandler:
        """Answers workers."""

    @property
    def joiners(self) -> JoinHandler:
        """Lets workers join."""

    async def kept(self) -> None:
        """Waits until all that follows from messages so far is on disk."""

    def status(self) -> control.JobStatus:
        """Returns the present state, for people."""

    def change_workers(self, request: control.ChangeRequest) -> control.ChangeReply:
        """Adds or removes workers."""

    def change_slots(self, request: control.SlotsRequest) -> control.SlotsReply:
        """Grants or revokes slots."""

    def stop_job(self, request: control.StopRequest) -> control.ChangeReply:
        """Stops the job after the current step."""


class Extension(Protocol):
    """Further requests that the endpoint answers, such as those for the dashboard."""

    def routes(self) -> list[web.RouteDef]:
        """The requests that need the token."""

    def open_routes(self) -> list[web.RouteDef]:
        """The requests that need no token; their answers must not tell anything about the job."""

    async def end(self, app: web.Application) -> None:
        """Ends answers that would go on, because the endpoint closes."""
