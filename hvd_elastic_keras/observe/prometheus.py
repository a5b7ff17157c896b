"""A running job in the text format of Prometheus (https://prometheus.io/docs/instrumenting/)."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hvd_elastic_keras.common.control import JobStatus
from hvd_elastic_keras.observe.job_course import JobCourse

PREFIX = "hvd_elastic"
CONTENT_TYPE = CONTENT_TYPE_LATEST


def exposition(status: JobStatus, course: JobCourse) -> bytes:
    """Returns all metrics of a job at this moment."""
    return generate_latest(_Job(status, course))


@dataclasses.dataclass(frozen=True)
class _Job(Collector):
    status: JobStatus
    course: JobCourse

    def collect(self) -> Iterable[Metric]:
        yield from _membership(self.status)
        yield from _training(self.status, self.course)
        yield from _totals(self.course)
        # Gauges, not counters: a second that seemed to be training may turn out to be another part.
        text = "Seconds since the job began, by what they were spent on"
        yield _by("goodput_seconds", text, "part", self.status.spent_s)


def _membership(status: JobStatus) -> Iterable[Metric]:
    ranks = sum(worker.rank is not None for worker in status.workers)
    yield _gauge("world_size", "Workers that have a rank", ranks)
    yield _gauge("slots", "Workers that the job keeps up, on all hosts", status.target_workers)
    states = Counter(worker.phase for worker in status.workers)
    yield _by("workers", "Workers by what they do", "state", states)
    text = "Replacements for failed workers that count at present"
    yield _gauge("restarts", text, status.restarts_used)
    yield _gauge("restarts_limit", "Replacements that may count", status.max_restarts)


def _training(status: JobStatus, course: JobCourse) -> Iterable[Metric]:
    yield _gauge("training", "Number of the present training, from 1", status.training)
    yield _gauge("round", "Number of the newest round, from 1", status.round)
    yield _gauge("step", "Optimizer steps of the present training", status.step)
    newest = course.newest
    if newest is None:
        return
    if newest.epoch is not None:
        yield _gauge("epoch", "Number of the present epoch, from 1", newest.epoch + 1)
    if newest.examples_per_s is not None:
        yield _gauge("examples_per_second", "Examples per second", newest.examples_per_s)
    text = "Seconds per step, or per commit of a loop of one's own"
    yield _gauge("step_seconds", text, newest.step_s)
    if "loss" in newest.metrics:
        text = "Loss of the epoch, or the evaluation, so far"
        yield _gauge("loss", text, newest.metrics["loss"])
    metrics = {name: value for name, value in newest.metrics.items() if name != "loss"}
    yield _by("metric", "Metrics of the epoch, or the evaluation, so far", "name", metrics)


def _totals(course: JobCourse) -> Iterable[Metric]:
    totals = course.totals
    for name, text, value in (
        ("rounds", "Rounds that have run", totals.rounds),
        ("worker_failures", "Workers that have failed", totals.failures),
        ("evictions", "Workers that the job has given up", totals.evictions),
        ("steps_lost", "Steps that had to be taken again", totals.steps_lost),
        ("stall_seconds", "Seconds between the last step of a round and the next", totals.stall_s),
    ):
        yield CounterMetricFamily(f"{PREFIX}_{name}", text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, value=value)


def _by(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
