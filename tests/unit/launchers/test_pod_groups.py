"""The first pods of a job in a queue are one group, as Kueue counts them; further ones are not."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from hvd_elastic_keras.launchers.kubernetes_pod import (
    GROUP_LABEL,
    GROUP_SIZE,
    PodGroup,
    PodSettings,
    manifest,
)
from hvd_elastic_keras.launchers.kubernetes_requests import Answers, PodRequests

SECRET = {"uid": "0123456789ab"}
SELECTOR = f"{GROUP_LABEL}=mnist-01234567"
LIMIT_S = 10.0


class Pods:
    """The pods of a cluster, in memory."""

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []

    def pods(self, selector: str) -> tuple[list[dict[str, Any]], str]:
        assert selector == SELECTOR
        return [p for p in self.all if GROUP_LABEL in p["metadata"]["labels"]], "1"

    def create(self, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        assert kind == "pods"
        self.all.append({**body, "status": {"phase": "Pending"}})
        return body

    def of(self, worker_id: str) -> dict[str, Any]:
        return next(p for p in self.all if p["metadata"]["name"] == f"mnist-{worker_id}")

    def run(self, worker_id: str) -> None:
        self.of(worker_id)["spec"]["nodeName"] = "node7"
        self.of(worker_id)["status"]["phase"] = "Running"

    def delete(self, worker_id: str) -> None:
        self.of(worker_id)["metadata"]["deletionTimestamp"] = "2026-11-29T10:00:00Z"

    def end(self, worker_id: str, phase: str = "Failed") -> None:
        self.of(worker_id)["status"]["phase"] = phase

    def group(self) -> set[str]:
        return {p["metadata"]["name"].removeprefix("mnist-") for p in self.pods(SELECTOR)[0]}


class Asked:
    """Requests for pods, and the answers to them."""

    def __init__(self, pods: Pods, group_size: int = 2) -> None:
        settings = PodSettings(
            "mnist", "id", "image", "default", queue="spot", group_size=group_size
        )
        self.waits: dict[str, str] = {}
        self._created: dict[str, threading.Event] = {}
        self._waiting: dict[str, threading.Event] = {}
        self.requests = PodRequests(
            pods,  # type: ignore[arg-type]
            settings,
            lambda worker_id, group: manifest(settings, worker_id, [], None, group),
            lambda _: True,
            Answers(
                created=lambda worker_id, _: self._created[worker_id].set(),
                refused=lambda worker_id, why: pytest.fail(f"{worker_id}: {why}"),
                delayed=self._delay,
            ),
            group=settings.group(SECRET),
        )

    def _delay(self, worker_id: str, why: str) -> None:
        self.waits[worker_id] = why
        self._waiting[worker_id].set()

    def ask(self, *worker_ids: str) -> None:
        for worker_id in worker_ids:
            self._created[worker_id] = threading.Event()
            self._waiting[worker_id] = threading.Event()
            self.requests.create(worker_id)

    def get(self, *worker_ids: str) -> None:
        self.ask(*worker_ids)
        self.wait(*worker_ids)

    def wait(self, *worker_ids: str) -> None:
        for worker_id in worker_ids:
            assert self._created[worker_id].wait(LIMIT_S)

    def why_not(self, worker_id: str) -> str:
        assert self._waiting[worker_id].wait(LIMIT_S)
        return self.waits[worker_id]


def test_as_many_pods_as_the_training_needs_are_in_the_group_however_they_are_asked_for() -> None:
    pods = Pods()
    Asked(pods, 3).get(*(f"w{n}" for n in range(8)))
    assert len(pods.all) == 8
    assert len(pods.group()) == 3
    for pod in pods.pods(SELECTOR)[0]:
        assert pod["metadata"]["annotations"] == {GROUP_SIZE: "3"}
        assert pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "spot"


def test_a_pod_that_failed_or_never_ran_is_replaced_in_the_group() -> None:
    pods = Pods()
    asked = Asked(pods)
    asked.get("w0", "w1")
    pods.run("w0")
    pods.end("w0")
    pods.delete("w1")
    asked.get("w2", "w3", "w4")
    assert len(pods.group() - {"w0", "w1"}) == 2


def test_one_that_has_succeeded_keeps_its_place_as_kueue_counts_it() -> None:
    pods = Pods()
    asked = Asked(pods)
    asked.get("w0", "w1")
    pods.run("w0")
    pods.end("w0", "Succeeded")
    pods.delete("w0")
    asked.get("w2")
    assert pods.group() == {"w0", "w1"}


def test_a_place_is_free_when_the_pod_before_has_ended_because_kueue_deletes_a_third_one() -> None:
    pods = Pods()
    asked = Asked(pods)
    asked.get("w0", "w1")
    pods.run("w0")
    pods.delete("w0")
    asked.ask("w2")
    why = "it takes the place of a pod that has not ended yet (mnist-w0)"
    assert asked.why_not("w2") == why
    assert pods.group() == {"w0", "w1"}
    pods.end("w0")
    asked.wait("w2")
    assert pods.group() == {"w0", "w1", "w2"}


def test_there_is_no_group_without_a_queue_or_for_a_training_that_one_worker_can_do() -> None:
    for queue, size in (("", 3), ("spot", 1), ("spot", 0)):
        settings = PodSettings("mnist", "id", "image", "default", queue=queue, group_size=size)
        assert settings.group(SECRET) is None
    assert GROUP_LABEL not in manifest(settings, "w0", [], None)["metadata"]["labels"]


def test_each_start_of_a_job_has_a_group_of_its_own() -> None:
    settings = PodSettings("mnist", "id", "image", "default", queue="spot", group_size=2)
    assert settings.group({"uid": "aaaaaaaabb"}) == PodGroup("mnist-aaaaaaaa", 2)
    assert settings.group({"uid": "bbbbbbbbbb"}) == PodGroup("mnist-bbbbbbbb", 2)


def test_annotations_of_a_template_are_kept_beside_those_of_the_group() -> None:
    template = {"metadata": {"annotations": {"a": "b"}, "labels": {"c": "d"}}}
    settings = PodSettings("m", "id", "image", "default", template=template)
    made = manifest(settings, "w0", [], None, PodGroup("g", 2))["metadata"]
    assert made["annotations"] == {"a": "b", GROUP_SIZE: "2"}
    assert (made["labels"]["c"], made["labels"][GROUP_LABEL]) == ("d", "g")
